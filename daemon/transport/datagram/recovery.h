// Which packets of a flow are on their way, which have arrived, and which are lost: as QUIC does it (RFC 9002), and
// where packets overtake each other as RACK does it (RFC 8985). Pure.
//
// At first a packet is lost when three behind it have arrived, or one has and a round trip has passed. Where packets
// turn out to overtake each other, only time counts: a round trip and a window, which grows by a quarter of the least
// round trip whenever a packet that was taken for lost arrives after all, up to another round trip (RFC 8985,
// section 6.2, step 4), and shrinks again after many round trips without one.
//
// A packet's number is never used again; what was in a lost one travels under a new number, so that an acknowledgement
// says when which copy arrived, and round trips need no guess (RFC 9002, section 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "daemon/transport/datagram/ranges.h"

namespace tensorlane::datagram {

// RFC 9002, section 5.
class RoundTrips {
 public:
  void add(Duration sample, Duration peer_delay);
  bool known() const { return smoothed_.value > 0; }
  Duration smoothed() const { return smoothed_; }
  // After it something that was sent is lost though nothing behind it has arrived (section 6.2.1). Without a sample
  // what a busy host may take.
  Duration timeout() const;
  // So long a packet may be overtaken (section 6.1.2), where the window for that is so many quarters of the least round
  // trip.
  Duration patience(unsigned quarters) const;

 private:
  static constexpr Duration kFirst = milliseconds(20), kGranularity = microseconds(200);
  Duration least_, smoothed_, variation_, latest_;
};

// One direction of an association.
class Recovery {
 public:
  // At most `capacity` packets, rounded up to a power of 2, are on their way at a time.
  explicit Recovery(std::size_t capacity);

  bool full() const { return next_ - oldest_ == packets_.size(); }
  std::uint64_t next_number() const { return next_; }
  // The packet of next_number() leaves with this piece of the stream; it may be empty. Unless full().
  void sent(Time now, Range piece);

  struct Outcome {
    std::vector<Range> acked, lost;  // pieces of the stream; reused from call to call
    std::size_t packets_lost = 0, packets_acked = 0;
    std::size_t spurious = 0;  // of those acknowledged: they had been taken for lost
    // After silence: this piece, which may be empty, is to go once more, so that a copy asks for an answer. It is not
    // taken for lost.
    std::optional<Range> probe;
    void clear();
  };
  // `come` are ranges of packet numbers, the highest first, and at least one. False, and nothing changes: there is one
  // that was never sent.
  [[nodiscard]] bool acknowledge(Time now, std::span<const Range> come, Duration peer_delay, RoundTrips* round_trips,
                                 Outcome* outcome);
  // When on_time() has something to do; nothing is on its way: never.
  std::optional<Time> deadline(const RoundTrips& round_trips) const;
  // Packets that have been overtaken for too long are lost. Where none has been, and for longer than the time-out
  // nothing was sent or heard, the oldest is probed with (section 6.2); only where there is no room for another is it
  // given up.
  void on_time(Time now, const RoundTrips& round_trips, Outcome* outcome);

  std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  // Nothing is on its way.
  bool idle() const { return oldest_ == next_; }

 private:
  enum class State : std::uint8_t { kOnItsWay, kLost, kDone };
  struct Packet {
    Time at;
    Range piece;
    State state = State::kDone;
  };
  Packet& packet(std::uint64_t number) { return packets_[number & (packets_.size() - 1)]; }
  const Packet& packet(std::uint64_t number) const { return packets_[number & (packets_.size() - 1)]; }
  void take(Packet& packet, State now, std::vector<Range>* into);
  void note_spurious(Time now, const RoundTrips& round_trips);
  void find_lost(Time now, const RoundTrips& round_trips, Outcome* outcome);
  void skip_done();
  void lose(std::uint64_t number, Outcome* outcome);

  // Section 6.1.1: so many packets behind one that has not arrived.
  static constexpr std::uint64_t kOvertaken = 3;
  static constexpr unsigned kMostBackoff = 6;
  static constexpr unsigned kMostQuarters = 64, kFewerAfter = 16;  // round trips

  // Of numbers first_ to next_, by number modulo the size, which is a power of 2. Before oldest_ nothing is on its way:
  // there only those matter that were taken for lost and may arrive after all.
  std::vector<Packet> packets_;
  std::uint64_t first_ = 0, oldest_ = 0, next_ = 0;
  std::uint64_t settled_ = 0;             // those before it are done, and no acknowledgement says more of them
  bool reorders_ = false;                 // packets overtake each other, so that only time makes one lost
  unsigned quarters_ = 1;                 // of the window for that
  Time grown_, fewer_at_;                 // when the window has grown last, and when it shrinks
  std::optional<std::uint64_t> largest_;  // that is acknowledged
  std::uint64_t bytes_in_flight_ = 0;
  Time last_moved_;        // when something was sent or heard last
  unsigned timeouts_ = 0;  // that followed each other
};

}  // namespace tensorlane::datagram
