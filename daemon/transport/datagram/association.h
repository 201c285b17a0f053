// Two hosts of a job on one rail: a stream in each direction for every class, over packets that may be lost, overtake
// each other, and come twice. Pure: no clock, socket or thread; whoever owns it brings packets and times, and asks for
// packets.
//
// What is sent is bounded by the receiver's credit (credits.h), by what the network bears (window.h), and by how many
// packets may be on their way. A stream that waits for credit says once how much it has, and asks again when nothing
// comes, since an acknowledgement with credit may be lost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/datagram/credits.h"
#include "daemon/transport/datagram/packet.h"
#include "daemon/transport/datagram/receive_stream.h"
#include "daemon/transport/datagram/recovery.h"
#include "daemon/transport/datagram/seal.h"
#include "daemon/transport/datagram/send_stream.h"
#include "daemon/transport/datagram/window.h"

namespace tensorlane::datagram {

struct AssociationConfig {
  JobId job;
  std::uint32_t local = 0, remote = 0;  // its number here and at the peer
  std::uint8_t classes = 1;             // data classes, alike at both ends
  std::size_t packet_bytes = 1400;      // at most, with the tag: what the path carries in a UDP payload
  Bytes window = mib(1);                // of each class on its way to the peer, at most (law 8)
  std::size_t frames = 1024;            // of each class, until the peer has them
  std::size_t packets = 4096;           // of each class on their way
  Bytes unasked = kib(8);               // Credits::Options::unasked of the peer's port
  DataProtection level = DataProtection::kNone;
  protect::Cipher cipher = protect::Cipher::kNone;
  protect::Key send_secret{}, receive_secret{};
};

struct AssociationCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, acks_sent = 0;
  std::uint64_t packets_lost = 0;  // taken for lost: what was in them is sent again
  std::uint64_t duplicates = 0;    // packets that came before
  std::uint64_t forged = 0;        // that nobody who has the keys has made, or that were damaged
  std::uint64_t marked = 0;        // that came with a mark of congestion
  std::uint64_t timeouts = 0;
};

class Association {
 public:
  // `credits` are those of the port that receives; they outlive the association, and so does every sink.
  Association(const AssociationConfig& config, Credits& credits);
  ~Association();
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  // Where the frames of a class go, and who is told that frames were sent. What comes of a class before that is
  // dropped, and comes again.
  void attach(Slot slot, ports::FrameSink& sink) { channels_[slot].sink = &sink; }

  bool writable(Slot slot) const { return channels_[slot].sends.writable(); }
  // Of a class that is attached and writable.
  void send(Slot slot, const ports::Outgoing& operation);
  // Bytes of the class that were given to send() and that the peer does not have.
  std::uint64_t outstanding(Slot slot) const { return channels_[slot].sends.end() - channels_[slot].sends.acked(); }

  // A packet with this association's number, which may be anything. `marked`: with ECN's mark of congestion. Calls
  // sinks. An error ends the association: the peer, who has the keys, has said what makes no sense, or a sink has
  // refused it.
  Status take(Time now, std::span<std::byte> packet, bool marked);
  // The next packet of that slot, or of kAckSlot, if there is something to say: how long it is. `out` has room for
  // packet_bytes.
  std::size_t make(Time now, Slot slot, std::span<std::byte> out);
  // When on_time() should be called, at the latest.
  std::optional<Time> deadline() const;
  void on_time(Time now);
  // Credits::give() has raised what the peer may send.
  void credit_raised(Slot slot) { channels_[slot].ack_due = true; }
  Credits::Stream credit_stream(Slot slot) const { return channels_[slot].credit; }

  const RoundTrips& round_trips(Slot slot) const { return times(channels_[slot]); }
  // How many time-outs have followed each other without a word of the peer.
  unsigned timeouts(Slot slot) const { return channels_[slot].recovery.timeouts(); }
  const AssociationCounters& counters() const { return counters_; }
  std::uint64_t window(Slot slot) const { return channels_[slot].window.size(); }

 private:
  // Of packets that have come. What lies below the floor counts as come, too.
  struct Numbers {
    RangeSet come;
    std::uint64_t floor = 0;
    std::uint64_t next() const { return come.empty() ? floor : come.ranges().back().end; }
  };

  // One class, both ways.
  struct Channel {
    Channel(const AssociationConfig& config);

    ports::FrameSink* sink = nullptr;
    // What goes.
    SendStream sends;
    Recovery recovery;
    RoundTrips round_trips;
    Window window;
    std::uint64_t limit = 0;         // the peer's credit
    bool probes = false;             // a packet may go whatever the window says (RFC 9002, section 7.5)
    std::uint64_t told = 0;          // it has been told of bytes up to here
    std::optional<Time> ask_again;   // set while the stream waits for credit, and nothing of it is on its way
    unsigned asks = 0;               // that followed each other in vain
    std::uint64_t marked_there = 0;  // packets that came there with a mark, as far as this end has heard
    // What comes.
    ReceiveStream receives;
    Credits::Stream credit = 0;
    Numbers numbers;
    std::uint64_t marked_here = 0;
    Time largest_at;
    unsigned unacked = 0;
    bool ack_due = false;
    std::optional<Time> ack_by;
  };

  bool plausible(const Head& head) const;  // before it has proved to be right
  bool is_new(const Head& head, Numbers* numbers);
  Status take_data(Time now, const ReadPacket& packet, bool marked);
  Status take_ack(Time now, const ReadAck& ack);
  void apply(Time now, Channel& channel, std::uint64_t marked);
  const RoundTrips& times(const Channel& channel) const;
  void arm_ask(Time now, Channel& channel);
  std::size_t make_data(Time now, Slot slot, std::span<std::byte> out);
  std::size_t make_acks(Time now, std::span<std::byte> out);
  bool is_blocked(const Channel& channel) const;
  static Status nonsense(const std::string& what);

  AssociationConfig config_;  // without its secrets
  Credits& credits_;
  Seal seals_, opens_;
  std::vector<Channel> channels_;  // by slot
  Numbers ack_numbers_;
  std::uint64_t next_ack_number_ = 0;
  Recovery::Outcome outcome_;
  ReadPacket read_;
  AssociationCounters counters_;
};

}  // namespace tensorlane::datagram
