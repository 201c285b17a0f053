// Two hosts of a job on one rail: a stream in each direction for every class, over packets that may be lost, overtake
// each other, and come twice. Pure: no clock, socket or thread; whoever owns it brings packets and times, and asks for
// packets. README.md says in which order.
//
// A class is opened by attach() at both ends, in any order, and closed by close() at either. It can be opened again,
// under the same keys: packet numbers go on, streams begin anew, and what is late of an earlier one changes nothing.
//
// What is sent is bounded by the receiver's credit (credits.h), by what the network bears (window.h), and by how many
// packets may be on their way. A stream that waits for credit says once how much it has, and asks again when nothing
// comes, since an acknowledgement with credit may be lost.
#pragma once

#include <array>
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
  std::uint32_t local = 0, remote = 0;  // its number here and at the peer
  std::uint8_t classes = 1;             // data classes, alike at both ends
  std::size_t packet_bytes = 1400;      // at most, with the tag: what the path carries in a UDP payload
  Bytes window = mib(1);                // of each class on its way to the peer, at most (law 8)
  std::size_t frames = 1024;            // of each class, until the peer has them
  std::size_t packets = 4096;           // of each class on their way
  Bytes unasked = kib(8);               // Credits::Options::unasked of the peer's port
  // Without a word of the peer, while something waits for one; none: never, as where strict priority may keep the class
  // from saying anything (law 10).
  std::optional<Duration> give_up = seconds(10);
  DataProtection level = DataProtection::kNone;
  protect::Cipher cipher = protect::Cipher::kNone;
  protect::Key send_secret{}, receive_secret{};
};

// Whose association it is. Called from inside Association::take(), and on_open() from inside attach(), too; it may call
// send(), attach() and close() from there. on_credit() is called from inside Credits::give(): make() has something to
// say then, and nothing may be called from there.
class AssociationOwner {
 public:
  virtual ~AssociationOwner() = default;
  // Both ends have attached: from now on the class can be sent in, and frames of it come.
  virtual void on_open(Slot slot) = 0;
  // The class was open, and the peer has closed it. Its sink hears no more. It can be attached again.
  virtual void on_closed(Slot slot, const Status& cause) = 0;
  virtual void on_credit() = 0;
};

struct AssociationCounters {
  std::uint64_t packets_sent = 0, packets_received = 0, acks_sent = 0;
  std::uint64_t packets_lost = 0;  // taken for lost: what was in them is sent again
  std::uint64_t spurious = 0;      // of them, those that have arrived after all
  std::uint64_t duplicates = 0;    // packets that came before
  std::uint64_t stale = 0;         // of a class that is not open here, or of an earlier stream of it
  std::uint64_t forged = 0;        // that nobody who has the keys has made, or that were damaged
  std::uint64_t marked = 0;        // that came with a mark of congestion
  std::uint64_t timeouts = 0;
  std::uint64_t packets_resent = 0;  // with what had been sent before, after a loss or a time-out

  AssociationCounters& operator+=(const AssociationCounters& more) {
    using A = AssociationCounters;
    for (const auto counter : {&A::packets_sent, &A::packets_received, &A::acks_sent, &A::packets_lost, &A::spurious,
                               &A::duplicates, &A::stale, &A::forged, &A::marked, &A::timeouts, &A::packets_resent})
      this->*counter += more.*counter;
    return *this;
  }
};

class Association final : private CreditHolder {
 public:
  // `credits` are those of the port that receives; they and the owner outlive the association.
  Association(const AssociationConfig& config, Credits& credits, AssociationOwner& owner);
  ~Association() override;
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  // Opens a class that is not attached: where its frames go, and who is told that frames were sent. It asks until the
  // peer has attached it, too (on_open), however long that takes, if the peer answers at all. The sink lives until
  // close() or on_closed().
  void attach(Time now, Slot slot, ports::FrameSink& sink);
  // The same for the first time of a class that the peer, as the handshake has said, attaches now, too: it is open at
  // once.
  void attach_both(Slot slot, ports::FrameSink& sink);
  // Closes a class that is attached: nothing of it is read or written any more, except by packets that borrow payloads
  // (borrows()), and nothing is told of it. What the peer does not have is lost. Not from inside a call of a sink's.
  void close(Time now, Slot slot);
  bool attached(Slot slot) const { return is_open(channels_[slot].phase); }
  // How often the class has been opened, this time included; alike at both ends while it is open at both.
  std::uint16_t generation(Slot slot) const { return generation_of(channels_[slot].phase); }

  // Both ends have attached, as far as is known here.
  bool is_up(Slot slot) const { return channels_[slot].up; }
  // The class is open, and there is room for a frame.
  bool writable(Slot slot) const { return channels_[slot].up && channels_[slot].sends.writable(); }
  // Of a class that is writable. From inside a call of a sink's, too.
  void send(Slot slot, const ports::Outgoing& operation);
  // Since the class was opened (law 21). The path's MTU is not known here.
  ports::FlowProgress progress(Slot slot) const;
  // Bytes of the class that were given to send() and that the peer does not have.
  std::uint64_t outstanding(Slot slot) const { return channels_[slot].sends.end() - channels_[slot].sends.acked(); }

  // A packet with this association's number, which may be anything. `marked`: with ECN's mark of congestion. Calls
  // sinks and the owner. An error ends the association, and nothing more may be given: the peer, who has the keys, has
  // said what makes no sense, or a sink has refused it. The answer lives as long as the association.
  const Status& take(Time now, std::span<std::byte> packet, bool marked);

  // The next packet of that slot, or of kAckSlot, if there is something to say: how long it is. `out` has room for
  // packet_bytes.
  std::size_t make(Time now, Slot slot, std::span<std::byte> out);
  // The same without copying payloads: those of more than a few bytes are parts of `packet` that lie where the caller
  // of send() keeps them, provided that the level is `none`. The first part lies in `own`, which has room for
  // packet_bytes. False: there is nothing to say. If the packet borrows, on_sent() waits for released().
  bool make(Time now, Slot slot, std::span<std::byte> own, Gathered* packet);
  // The packet of that slot and number, and every one of the slot that was made before it, is read no more. May call
  // FrameSink::on_sent().
  void released(Slot slot, std::uint64_t number);
  // Packets that borrow of what was given to send() in this class, now or before it was closed, are not released: so
  // the memory must stay.
  bool borrows(Slot slot) const { return channels_[slot].sends.borrows(); }

  // When on_time() should be called, at the latest, and packets asked for then.
  std::optional<Time> deadline() const;
  // Says once, as kTimedOut, that the peer has been silent for `give_up` while something waited for it. Whether
  // to end the association is the owner's affair.
  Status on_time(Time now);

  Credits::Stream credit_stream(Slot slot) const { return channels_[slot].credit; }  // of a class that is attached
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
    Phase phase = 0, phase_there = 0;  // here, and as far as this end has heard
    Phase heard_there = 0;             // of this end's, as far as it is known that the peer has heard
    bool up = false;                   // both ends are at the same phase, in which the class is open
    bool say_due = false;              // of its phase
    std::optional<Time> say_again;     // set while the peer has not answered
    unsigned says = 0;                 // that followed each other
    // What goes.
    SendStream sends;
    Recovery recovery;
    RoundTrips round_trips;
    Window window;
    std::uint64_t given = 0, sent_again = 0;  // frames, packets
    std::uint64_t limit = 0;                  // the peer's credit
    bool probes = false;                      // a packet may go whatever the window says (RFC 9002, section 7.5)
    std::uint64_t told = 0;                   // it has been told of bytes up to here
    std::optional<Time> ask_again;            // set while the stream waits for credit, and nothing of it is on its way
    unsigned asks = 0;                        // that followed each other in vain
    std::uint64_t marked_there = 0;           // packets that came there with a mark, as far as this end has heard
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

  void credit_raised(Slot slot) override;
  // Opening and closing.
  void end_stream(Channel& channel);
  void say(Channel& channel, Phase phase);
  void come_up(Slot slot);
  bool wants_answer(const Channel& channel) const;
  bool take_state(const State& state);
  bool of_open_stream(const Head& head);
  State state_of(Time now, Slot slot);

  bool plausible(const Head& head) const;  // before it has proved to be right
  std::size_t open(Time now, const Head& head, std::span<std::byte> packet);
  bool is_new(const Head& head, Numbers* numbers);
  bool take_records(Time now, const ReadPacket& packet);
  bool take_data(Time now, const ReadPacket& packet, bool marked);
  bool take_ack(Time now, const ReadAck& ack);
  void apply(Time now, Channel& channel, std::uint64_t marked);
  const RoundTrips& times(const Channel& channel) const;
  void arm_ask(Time now, Channel& channel);
  std::optional<Range> next_piece(Time now, Channel& channel, std::size_t most);
  Head begin_data(Channel& channel, Slot slot, Range piece, std::byte* out);
  void end_data(Time now, Channel& channel, Range piece, std::uint64_t unsent);
  std::size_t make_data(Time now, Slot slot, std::span<std::byte> out);
  std::size_t make_acks(Time now, std::span<std::byte> out);
  bool is_blocked(const Channel& channel) const;
  void note_waiting(Time now);
  bool nonsense(const std::string& what);

  AssociationConfig config_;  // without its secrets
  Credits& credits_;
  AssociationOwner& owner_;
  Seal seals_, opens_;
  std::vector<Channel> channels_;  // by slot
  std::uint32_t used_ = 0;         // a bit for each slot that was opened, or of which the peer has said something
  Numbers ack_numbers_;
  std::uint64_t next_ack_number_ = 0;
  Time next_far_;
  Recovery::Outcome outcome_;
  ReadPacket read_;
  AssociationCounters counters_;
  Status status_;  // of take()
  // Giving up.
  std::uint32_t waiting_ = 0;        // a bit for each slot in which something waits for the peer
  std::optional<Time> waits_since_;  // or since the peer's last word, whichever is later
  bool given_up_ = false;
};

}  // namespace tensorlane::datagram
