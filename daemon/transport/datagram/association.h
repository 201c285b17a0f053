// A flow between two hosts: a stream of one class in each direction, over packets that may be lost, overtake each
// other, and come twice. Pure: no clock, socket or thread; whoever owns it brings packets and times, and asks for
// packets. README.md says in which order.
//
// Both ends make it with the same keys, which are of no other association, and it is open from then on. So what is late
// of an earlier one proves nothing here.
//
// What is sent is bounded by the receiver's credit (credits.h), by what the network bears (window.h), and by how many
// packets may be on their way. A stream that waits for credit says once how much it has, and asks again when nothing
// comes, since an acknowledgement with credit may be lost.
#pragma once

#include <cstddef>
#include <cstdint>
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
  Slot slot = 0;                    // of its class, alike at both ends
  std::uint32_t remote = 0;         // the number that the peer has given it
  std::size_t packet_bytes = 1400;  // at most, with the tag: what the path carries in a UDP payload
  Bytes window = mib(1);            // on its way to the peer, at most (law 8)
  std::size_t frames = 1024;        // until the peer has them
  std::size_t packets = 4096;       // on their way
  Bytes unasked = kib(8);           // Credits::Options::unasked of the peer's port
  // Without a word of the peer, while something waits for one; none: never, as where strict priority may keep the class
  // from saying anything (law 10).
  std::optional<Duration> give_up = seconds(10);
  DataProtection level = DataProtection::kNone;
  protect::Cipher cipher = protect::Cipher::kNone;
  protect::Key send_secret{}, receive_secret{};  // packet numbers begin at 0 under each
};

struct AssociationCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, acks_sent = 0;
  std::uint64_t packets_lost = 0;  // taken for lost: what was in them is sent again
  std::uint64_t spurious = 0;      // of them, those that have arrived after all
  std::uint64_t duplicates = 0;    // packets that came before
  std::uint64_t forged = 0;        // that nobody who has the keys has made for this association, or that were damaged
  std::uint64_t marked = 0;        // that came with a mark of congestion
  std::uint64_t timeouts = 0;
  std::uint64_t packets_resent = 0;  // with what had been sent before, after a loss or a time-out

  AssociationCounters& operator+=(const AssociationCounters& more) {
    using A = AssociationCounters;
    for (const auto counter : {&A::packets_sent, &A::packets_received, &A::acks_sent, &A::packets_lost, &A::spurious,
                               &A::duplicates, &A::forged, &A::marked, &A::timeouts, &A::packets_resent})
      this->*counter += more.*counter;
    return *this;
  }
};

class Association {
 public:
  // `credits` are those of the port that receives. Frames go to `sink`, and come from the caller of send(), whom it
  // answers by on_sent(). The sink is called from inside take() and released(), and may call send() from there.
  // `holder`: make_ack() has something to say when its credit is raised. All three outlive the association.
  Association(const AssociationConfig& config, Credits& credits, ports::FrameSink& sink, CreditHolder& holder);
  ~Association();
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  // There is room for a frame.
  bool writable() const { return sends_.writable(); }
  // Where it is writable. The payload belongs to the caller, and is read until on_sent(). What the peer does not have
  // when the association goes is lost.
  void send(const ports::Outgoing& operation);
  // Law 21. The path's MTU is not known here.
  ports::FlowProgress progress() const;
  // Bytes that were given to send() and that the peer does not have.
  std::uint64_t outstanding() const { return sends_.end() - sends_.acked(); }

  // A packet with this association's number, which may be anything. `marked`: with ECN's mark of congestion. An error
  // ends the association, and nothing more may be given: the peer, who has the keys, has said what makes no sense, or
  // the sink has refused it. The answer lives as long as the association.
  const Status& take(Time now, std::span<std::byte> packet, bool marked);

  // The next packet with data, or with an acknowledgement, if there is something to say: how long it is. `out` has room
  // for packet_bytes.
  std::size_t make(Time now, std::span<std::byte> out);
  std::size_t make_ack(Time now, std::span<std::byte> out);
  // The next packet with data without copying payloads: those of more than a few bytes are parts of `packet` that lie
  // where the caller of send() keeps them, provided that the level is `none`. The first part lies in `own`, which has
  // room for packet_bytes. False: there is nothing to say. If the packet borrows, on_sent() waits for released().
  bool make(Time now, std::span<std::byte> own, Gathered* packet);
  // The packet of data with that number, and every one that was made before it, is read no more.
  void released(std::uint64_t number);
  // Packets that borrow of what was given to send() are not released: so the memory must stay, even if the association
  // goes.
  bool borrows() const { return sends_.borrows(); }

  // When on_time() should be called, at the latest, and packets asked for then.
  std::optional<Time> deadline() const;
  // Says once, as kTimedOut, that the peer has been silent for `give_up` while something waited for it. Whether
  // to end the association is the owner's affair.
  Status on_time(Time now);

  // Asks the peer for a word, again and again, as if something waited for it, until one comes.
  void ask(Time now);
  // Since when something waits for the peer, or since its last word, whichever is later.
  std::optional<Time> waits_since() const { return waits_since_; }

  const AssociationCounters& counters() const { return counters_; }
  // For tests: bytes that may be on their way, as far as the network bears them, and bytes that the peer may send
  // beyond those that have come.
  std::uint64_t window() const { return window_.size(); }
  std::uint64_t promised() const { return credits_.credit(credit_) - receives_.come(); }

 private:
  // Of packets that have come.
  class Numbers {
   public:
    // Whether it comes for the first time, as far as is known.
    bool add(std::uint64_t number);
    // All that have come are before it.
    std::uint64_t next() const { return come_.empty() ? floor_ : come_.ranges().back().end; }
    std::span<const Range> ranges() const { return come_.ranges(); }

   private:
    RangeSet come_;
    std::uint64_t floor_ = 0;  // what lies below counts as come
  };

  const Numbers& numbers(Slot slot) const { return slot == kAckSlot ? ack_numbers_ : numbers_; }
  bool plausible(const Head& head, std::size_t bytes) const;  // before it has proved to be right
  std::size_t open(Time now, const Head& head, std::span<std::byte> packet);
  bool take_data(Time now, const ReadPacket& packet, bool marked);
  bool take_ack(Time now, const ReadPacket& packet);
  void apply(Time now, std::uint64_t marked);
  bool is_blocked() const;
  void arm_ask(Time now);
  std::optional<Range> next_piece(Time now, std::size_t most);
  Head begin_data(Range piece, std::byte* out);
  void end_data(Time now, Range piece, std::uint64_t unsent);
  void note_waiting(Time now);

  AssociationConfig config_;  // without its secrets
  Credits& credits_;
  ports::FrameSink& sink_;
  Seal seals_, opens_;
  // What goes.
  SendStream sends_;
  Recovery recovery_;
  RoundTrips round_trips_;
  Window window_;
  std::uint64_t given_ = 0, sent_again_ = 0;  // frames, packets
  std::uint64_t limit_;                       // the peer's credit
  bool probes_ = false;                       // a packet may go whatever the window says (RFC 9002, section 7.5)
  std::uint64_t announced_ = 0;               // the peer has heard, or soon will, of bytes up to here
  std::optional<Time> ask_again_;             // set while the stream waits for credit, and nothing of it is on its way
  unsigned asks_ = 0;                         // that followed each other in vain
  std::uint64_t marked_there_ = 0;            // packets that came there with a mark, as far as this end has heard
  // What comes.
  ReceiveStream receives_;
  const Credits::Stream credit_;
  std::uint64_t said_credit_;  // in the last acknowledgement; first what the peer may send unasked
  Numbers numbers_;
  std::uint64_t marked_here_ = 0;
  Time largest_at_;
  unsigned unacked_ = 0;
  bool ack_due_ = false;
  std::optional<Time> ack_by_;
  // Acknowledgements.
  Numbers ack_numbers_;
  std::uint64_t next_ack_number_ = 0;
  // Both ways.
  Time next_far_;
  Recovery::Outcome outcome_;
  ReadPacket read_;
  AssociationCounters counters_;
  Status status_;  // of take()
  std::optional<Time> waits_since_;
  bool asked_ = false;  // ask(), and no word has come
  bool given_up_ = false;
};

}  // namespace tensorlane::datagram
