// Messages from one rank to another, with a tag: what waits, what matches what, what goes next and where it lands. A
// pure machine beside the operations' engine: time and frames come in, frames and outcomes go out (law 6). It owns no
// clock, socket or memory of messages, and allocates nothing after it is made.
//
// How a message moves. The sender announces it (kMessage). Its bytes stay with the sender until a receive of this
// destination, tag and source (or of any source) is posted; the receiver's host matches the two and answers once: with
// a grant (kMessageGrant), or, where count or dtype differ, with a refusal (kMessageRefused), which ends both requests
// with a mismatch. Granted bytes travel as operations of at most kMaxOperation, in order, in one flow, and land in the
// receiver's buffer by a look at the grant. A message to a rank of this host is matched in the same tables, and its
// bytes are copied in blocks.
//
// Order. Control frames of a flow arrive in order, a message of one (source, destination, tag) is announced behind the
// one posted before, and what was announced first is matched first: messages of one (source, destination, tag) match in
// the order in which they were posted. A receive from any source takes the earliest announcement of its tag.
//
// Bounds. A host has room for `open_per_rank` requests of each of its ranks, and for `announcements` of every peer that
// are not answered yet; a send beyond that waits at its host without being announced, and goes when an answer has come:
// the answer is the credit that comes back. So a program whose receives are posted in another order than its sends
// makes progress as long as no more than `announcements` messages between two hosts wait for receives that come later.
// Nothing goes to a host whose flows are not up (peer_up()).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/descriptor.h"
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/frame.h"
#include "daemon/engine/egress/peer_set.h"
#include "daemon/engine/messages/heap.h"
#include "daemon/engine/types.h"

namespace tensorlane::engine {

inline constexpr Rank kAnySource{0xffffffff};

struct MessagesConfig {
  JobId job;
  Epoch epoch;
  HostIndex self;
  std::uint16_t hosts = 1;
  std::vector<HostIndex> host_of;      // by rank
  std::uint8_t classes = 2;            // data classes
  std::uint32_t open_per_rank = 4096;  // requests of a rank of this host; all its ranks' together below 2^20
  std::uint32_t announcements = 1024;  // of each peer, not answered yet; the same on all hosts
};

// A send or a receive, as the caller posts it.
struct Message {
  Rank source, destination;  // of a receive, `source` may be kAnySource
  std::uint32_t set = 0;     // the process set whose message it is, below 2^24: others do not match
  std::uint64_t tag = 0;
  std::uint64_t count = 0;  // elements, at most 2^32
  Dtype dtype{};
  Descriptor buffer;          // count elements; the machine's until the request is done
  float urgency = 0;          // in [0, 1]; of a send
  ClassId cls;                // of a send: the flow that its bytes go in
  std::uint64_t request = 0;  // the caller's name for it
};

// A request is over: its buffer is the caller's again.
struct MessageDone {
  std::uint64_t request = 0;
  Code code = Code::kOk;     // or kMismatch: the other rank's values are below; or kAborted
  Rank source, destination;  // of the message that matched
  std::uint64_t tag = 0;
  std::uint64_t other_count = 0;  // these two: what the other rank has posted, where that is known
  Dtype other_dtype{};
};

// How far a request has come.
enum class MessageStage : std::uint8_t {
  kHeld,       // a send that may not be announced: as many as may be are announced to the peer and not answered
  kUnmatched,  // its other end is not known
  kMatched,
  kOver,
};

// A block of a message between two ranks of this host. Until copied(token) neither buffer is given back.
struct MessageCopy {
  Descriptor from, to;  // at most kMaxOperation bytes
  ClassId cls;
  std::uint64_t token = 0;
};

class Messages {
 public:
  // Allocates table_bytes(). A config that breaks its stated bounds is a broken invariant.
  explicit Messages(MessagesConfig config);
  // What its tables take.
  static Bytes table_bytes(const MessagesConfig& config);

  // Errors, which change nothing: kInvalidArgument (a rank that the job does not have), kResourceExhausted (so many of
  // the rank's requests have not come out of next_done() as it may have), kAborted. A rank that is not of this host is
  // a broken invariant: `source` of a send, `destination` of a receive. Work: a look at the first that fits, of a hash
  // table's bucket.
  Status send(Time now, const Message& message);
  Status receive(Time now, const Message& message);

  // The id of the request that was posted last; and how far a request has come, by its id.
  std::uint32_t last_posted() const { return last_posted_; }
  MessageStage stage_of(std::uint32_t id) const;

  HostIndex host_of(Rank rank) const { return config_.host_of[rank.value]; }
  // All flows to this host are up. Once.
  void peer_up(HostIndex peer);

  // A frame of one of the message types, or kData with kFlagMessage whose payload has landed. Null, or a text that says
  // which rule of the protocol it breaks; then nothing has changed. A host may send anything.
  const char* take_frame(Time now, HostIndex peer, const protocol::FrameHeader& header);
  // Where the payload of kData with kFlagMessage lands; a lookup that changes nothing. Length zero: stale, drop it. An
  // error means that the frame breaks the protocol.
  Result<Descriptor> landing(HostIndex peer, const protocol::FrameHeader& header) const;

  // As Engine::pick(), next_flow(), has_sends(). Most urgent first, and what was granted first among equals. Where an
  // answer is all that a receive waits for, it is over then.
  std::size_t pick(Flow flow, Bytes credit, std::span<Send> out);
  bool next_flow(ClassId cls, HostIndex after, HostIndex* peer) const;
  bool has_sends(Flow flow) const;
  void sent(std::uint64_t token);  // the transport does not read the payload any more

  // The next block of a message that stays on this host; false when there is none. And its class.
  bool pick_copy(MessageCopy* out);
  std::optional<ClassId> next_copy() const;
  void copied(std::uint64_t token);

  // The next request that is over; false when there is none. Every posted request comes out once.
  bool next_done(MessageDone* out);

  // The job is over: nothing is posted, picked or taken any more. Once all flows are closed and no copy is under way,
  // drained() ends what is open with kAborted (law 7).
  void abort() { aborted_ = true; }
  void drained();

  // What is lent out of what comes back: announcements to `peer` that are not answered; of `peer` that this host has
  // not answered. And requests that are not gone from the tables.
  struct Lent {
    std::uint32_t announced = 0, unanswered = 0, open = 0;
  };
  Lent lent(HostIndex peer) const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  enum class State : std::uint8_t {
    kFree,
    kWaits,      // a receive: for a message; a send: to be announced
    kAnnounced,  // a send: for the answer
    kTravels,    // matched
    kOver,       // its outcome is or was told
  };
  struct Item {
    Message message;
    MessageDone done;
    State state = State::kFree;
    bool sends = false;
    bool told = false;     // its outcome
    bool answers = false;  // a receive: its answer has not gone yet
    bool refuses = false;  // ... and is a refusal
    HostIndex peer;        // the other host
    std::uint32_t generation = 1;
    std::uint32_t other = 0;      // a send: the grant; a receive: the sender's id, or the local send
    std::uint64_t moved = 0;      // bytes that were picked, or have arrived
    std::uint32_t in_flight = 0;  // operations, or blocks of a copy
    std::uint32_t next = kNone;   // in the list that it waits in: of a bucket, a peer, what is over, what is free
    std::uint64_t order = 0;      // in which it was posted
    Time since;
  };
  // A message that no receive has matched. Of a local one `id` is the send's index.
  struct Announcement {
    Rank source, destination;
    std::uint32_t set = 0;
    std::uint64_t tag = 0, count = 0;
    Dtype dtype{};
    HostIndex peer;
    std::uint32_t id = 0;
    std::uint32_t next = kNone;                              // of the same source, destination and tag
    std::uint32_t next_of_any = kNone, last_of_any = kNone;  // behind and before it, of the same destination and tag
  };
  struct List {
    std::uint32_t first = kNone, last = kNone;
    bool empty() const { return first == kNone; }
  };
  // Of a source, destination, process set and tag; with kAnySource as the source, of receives from any, and of all
  // announcements of this destination and tag once more (linked by next_of_any), for these receives. And of what else
  // hashes to it.
  struct Bucket {
    List receives, announcements, of_any;
  };
  struct Peer {
    bool up = false;               // its flows
    List answers, sends;           // to go
    std::uint32_t announced = 0;   // to it, not answered
    std::uint32_t unanswered = 0;  // of it
  };

  template <typename Table>
  void append(Table& table, List& list, std::uint32_t index);
  template <typename Table>
  std::uint32_t take_first(Table& table, List& list);
  template <typename Table, typename Fits>
  std::uint32_t find_fitting(const Table& table, const List& list, const Fits& fits) const;
  template <typename Table, typename Fits>
  std::uint32_t take_fitting(Table& table, List& list, const Fits& fits);

  Status check(const Message& message, Rank self) const;
  std::uint32_t add_request(Time now, const Message& message, bool sends);
  void free_if_gone(std::uint32_t index);
  void finish(std::uint32_t index, Code code);
  // Of what has the source, and the rest as `of`: a Message or an Announcement.
  template <typename Of>
  Bucket& bucket(Rank source, const Of& of) {
    return bucket(source, of.destination, of.set, of.tag);
  }
  Bucket& bucket(Rank source, Rank destination, std::uint32_t set, std::uint64_t tag);
  std::uint32_t take_announcement_for(const Message& message);
  std::uint32_t take_receive_for(const Announcement& announcement);
  void unlink_of_any(std::uint32_t announcement);
  void announced(Time now, const Announcement& announcement);
  void match(Time now, std::uint32_t receive, const Announcement& announcement);
  void match_local(std::uint32_t receive, std::uint32_t send);
  void answer(std::uint32_t receive);
  void look_at_control(HostIndex peer);
  std::uint64_t bytes_of(const Message& message) const { return message.count * dtype_size(message.dtype); }
  std::uint32_t id_of(std::uint32_t index) const;
  std::uint32_t find(std::uint32_t id) const;
  const char* find_landing(HostIndex peer, const protocol::FrameHeader& header, std::uint32_t* receive) const;
  const char* take_announcement(Time now, HostIndex peer, const protocol::FrameHeader& header);
  const char* take_answer(Time now, HostIndex peer, const protocol::FrameHeader& header);
  const char* take_data(HostIndex peer, const protocol::FrameHeader& header);
  std::size_t pick_control(HostIndex peer, std::span<Send> out);
  std::size_t pick_data(Flow flow, Bytes credit, std::span<Send> out);
  protocol::FrameHeader header_for(protocol::FrameType type, ClassId cls) const;

  const MessagesConfig config_;
  std::vector<Item> items_;
  std::vector<Announcement> announcements_;
  std::vector<Bucket> buckets_;         // a power of two of them
  std::vector<Peer> peers_;             // by host
  std::vector<std::uint32_t> open_of_;  // by rank
  List free_items_, free_announcements_, over_;
  std::uint32_t open_ = 0;
  MessageHeaps heaps_;         // granted sends, by (class, peer); copies: those to this host
  PeerSet control_;            // peers with something to go
  std::vector<PeerSet> data_;  // by class
  std::uint64_t grants_ = 0;   // orders equals
  std::uint64_t posted_ = 0;   // requests, ever
  std::uint32_t last_posted_ = 0;
  bool aborted_ = false;
};

template <typename Table>
void Messages::append(Table& table, List& list, std::uint32_t index) {
  table[index].next = kNone;
  (list.empty() ? list.first : table[list.last].next) = index;
  list.last = index;
}

template <typename Table>
std::uint32_t Messages::take_first(Table& table, List& list) {
  return take_fitting(table, list, [](const auto&) { return true; });
}

// The first one that fits; kNone where none does.
template <typename Table, typename Fits>
std::uint32_t Messages::find_fitting(const Table& table, const List& list, const Fits& fits) const {
  std::uint32_t at = list.first;
  while (at != kNone && !fits(table[at])) at = table[at].next;
  return at;
}

// It leaves the list.
template <typename Table, typename Fits>
std::uint32_t Messages::take_fitting(Table& table, List& list, const Fits& fits) {
  std::uint32_t before = kNone, at = list.first;
  while (at != kNone && !fits(table[at])) at = table[before = at].next;
  if (at == kNone) return kNone;
  (before == kNone ? list.first : table[before].next) = table[at].next;
  if (list.last == at) list.last = before;
  return at;
}

}  // namespace tensorlane::engine
