// The session protocol between a client and the daemon of its host: what travels over the Unix socket (set-up,
// registration) and what lives in shared memory (rings). Fixed-size structs, little-endian, versioned as a whole by
// kSessionVersion.
//
// The Unix socket is SOCK_SEQPACKET: one message is one packet, a MessageHeader and a body. File descriptors travel as
// SCM_RIGHTS with the message that announces them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/status.h"

namespace tensorlane::protocol {

inline constexpr std::uint32_t kSessionMagic = 0x53534c54;  // "TLSS"
inline constexpr std::uint16_t kSessionVersion = 11;
inline constexpr std::size_t kMaxName = 255;  // bytes of a job's, group's or tensor's name, without a terminator
inline constexpr std::size_t kMaxSecret = 256;
inline constexpr std::size_t kMaxMessage = std::size_t{64} * 1024;  // a packet on the socket
inline constexpr std::size_t kMaxStatus = std::size_t{64} << 20;    // of the JSON text
inline constexpr std::size_t kMaxQuestion = std::size_t{16} << 10;
inline constexpr std::size_t kMaxTensorsPerMessage = 128;
inline constexpr std::size_t kMaxSetRanks = 8192;                      // of a process set, unless it is all of a job
inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 32;  // of one tensor
inline constexpr std::uint32_t kMaxOutstanding =
    16384;  // operations of one session that are submitted and not yet completed
inline constexpr std::uint32_t kMessageSlots = 1024;  // sends and receives of one session that are not yet over
inline constexpr std::uint32_t kMaxSetNumber = (1u << 24) - 1;
inline constexpr std::uint32_t kAnyRank = 0xffffffff;  // of a receive: whoever sends

enum class MessageType : std::uint16_t {
  kHello = 1,    // client: HelloBody
  kWelcome = 2,  // daemon: WelcomeBody + 2 descriptors: ring memory, wake eventfd. Sent when the whole job is connected
  kError = 3,    // daemon: ErrorBody; for kHello and job failures the session is over
  kArena = 4,    // client: ArenaBody (segment, bytes). daemon: the same + 1 descriptor of sealed, populated memory. The
                 // client maps it and seals it (F_SEAL_FUTURE_WRITE) before it registers a tensor in it
  kRegister = 5,    // client: RegisterBody + u32 rank[set_ranks] + TensorBody[count]; a group larger than one packet is
                    // sent in several, `more` set on all but the last, the ranks in the first
  kRegistered = 6,  // daemon: RegisteredBody + u32 tensor id[count], in the order of registration
  kStatus = 7,      // client: StatusBody. daemon: StatusPage and a piece of the JSON text
  kGoodbye = 8,     // client: leaves in peace; the daemon answers kGoodbye when nothing of it is in flight
  kOverdue = 9,     // client: its kRegister of this number has taken longer than the program waits. Without a body
  kUnregister = 10,    // client: UnregisterBody
  kUnregistered = 11,  // daemon, with an empty body: the group is out of the plan of every host, and its ids may be
                       // given to other tensors
  kAsk = 12,  // client: a question, a JSON text of at most kMaxQuestion bytes (daemon/control/questions.h). The
              // daemon answers with the first page of the answer, as to kStatus, which asks for the next ones
};

struct MessageHeader {
  std::uint32_t magic = kSessionMagic;
  std::uint16_t version = kSessionVersion;
  MessageType type{};
  std::uint32_t request = 0;  // chosen by the client; an answer carries the same
  std::uint32_t body_bytes = 0;
};
static_assert(sizeof(MessageHeader) == 16);

struct HelloBody {
  std::uint32_t rank = 0, world_size = 0, local_rank = 0, local_world_size = 0;
  std::uint32_t secret_bytes = 0;
  std::uint32_t timeout_ms = 0;    // how long the client waits for kWelcome; 0: as long as the daemon likes
  char job[kMaxName + 1] = {};     // TORCHELASTIC_RUN_ID or the job's name
  char leader[kMaxName + 1] = {};  // MASTER_ADDR: name or address of the host of rank 0
  unsigned char secret[kMaxSecret] = {};
  std::uint32_t leader_port = 0;  // MASTER_PORT; 0: none. Jobs of one user, leader and name differ by it
  std::uint32_t reserved = 0;
};

struct WelcomeBody {
  std::uint32_t ring_entries = 0;  // of each ring; a power of two
  std::uint32_t epoch = 0;
  std::uint32_t hosts = 0;  // hosts of the job
  std::uint32_t host_index = 0;
  double detection_seconds = 0;  // how soon a dead peer is found
  char host[kMaxName + 1] = {};  // the name of the daemon's host in the fabric file
};

// At offset 0 the daemon writes its status anew; each answer says how long it is, and the next page begins where the
// last one ended. The daemon keeps one status of a session, until its last page was given.
struct StatusBody {
  std::uint64_t offset = 0;
};
struct StatusPage {
  std::uint64_t bytes = 0;   // of the whole text
  std::uint64_t offset = 0;  // of this piece, which fills the packet
};

struct ErrorBody {
  Code code{};
  char what[1024] = {}, where[512] = {}, fix[512] = {};
};

struct ArenaBody {
  std::uint32_t segment = 0;  // chosen by the daemon, from 0
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;  // asked for; the answer is rounded up to pages
};

struct RegisterBody {
  char group[kMaxName + 1] = {};  // what ranks register together; unique in the job
  std::uint32_t count = 0;        // tensors in this packet; with ranks there may be none
  std::uint32_t more = 0;
  std::uint32_t set_ranks = 0;  // of a process set: how many. Its ranks, ascending, are the only ones that register the
                                // group, and in its tensors they are counted from 0. None: all ranks
  std::uint32_t reserved = 0;
};

// Of TensorBody: what daemon.yaml of the leader's host says, and what the leader's cost model says.
inline constexpr std::uint8_t kDaemonsPattern = 0;
inline constexpr std::uint8_t kAutomaticPattern = 255;

// Of TensorBody: the program has not said how urgent it is. The leader's fabric file may, else `urgency` counts.
inline constexpr std::uint8_t kUnsaidUrgency = 2;

// One tensor of a group. Everything but `segment` and `offset` must be the same on all ranks.
struct TensorBody {
  char name[kMaxName + 1] = {};
  std::uint64_t elements = 0;  // of the whole buffer: for allgather, of the gathered result
  std::uint64_t row = 1;       // reduce-scatter: elements that stay together; divides `elements`
  std::uint64_t offset = 0;    // of the buffer in its segment; a multiple of 64
  std::uint32_t segment = 0;
  std::uint32_t position = 0;  // in the forward pass, 0 is needed first
  std::uint32_t root = 0;      // rank, for broadcast
  Dtype dtype{};
  Operation operation{};
  ReduceOp reduce{};
  std::uint8_t explicit_urgency = 0;  // 1: `urgency` overrides layer order; kUnsaidUrgency
  float urgency = 0;
  std::uint32_t positions = 0;             // L of layer order: positions run from 0 to L-1
  std::uint8_t pattern = kDaemonsPattern;  // or kAutomaticPattern, or the number of a Pattern and one more
  std::uint8_t reserved[7] = {};
};

struct RegisteredBody {
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};

// A group, as in RegisterBody, of which nothing is under way here.
struct UnregisterBody {
  char group[kMaxName + 1] = {};
  std::uint64_t operations = 0;  // that the client has completed on its tensors, all together
  std::uint32_t timeout_ms = 0;  // how long it waits for the answer; 0: as long as the daemon likes
  std::uint32_t for_good = 0;    // 1: it does not wait, and does not come back to the group, as with a process set that
                                 // it leaves; the answer comes at once
};

// ---- shared memory ----

// Client -> daemon: run the registered operation once on the tensor's buffer.
struct SubmissionEntry {
  std::uint32_t tensor = 0;    // id from kRegistered; with kSubmitMessage a slot
  std::uint32_t flags = 0;     // 0, kFlagBoost, kFlagWaited, kFlagParts or kSubmitMessage
  std::uint64_t sequence = 0;  // 1, 2, 3... per tensor
};
inline constexpr std::uint32_t kFlagBoost =
    1;  // not a new operation: a wait blocks on this one, boost what it waits for (law 9)
inline constexpr std::uint32_t kFlagWaited =
    2;  // nor this: the program waits for this one now, blocked or not; only while RingPage::observe is 1
inline constexpr std::uint32_t kFlagParts =
    4;  // of an operation, `sequence` being with_parts() (parts.h): these parts of the contribution are in the buffer.
        // The first entry of an operation begins it, and one without flags says that the rest is there

inline constexpr std::uint32_t kSubmitMessage =
    8;  // not of a tensor: the send or receive that stands in this MessageSlot. `sequence` is 0

// Daemon -> client.
struct CompletionEntry {
  std::uint32_t tensor = 0;  // with kMessageBit: a slot, whose message is over; its outcome stands there
  Code status{};  // details of a failure: the job's error text in RingPage::error. kInProgress: `sequence` is
                  // with_parts(), and these parts of the result are in place, of an operation that began in parts
  std::uint64_t sequence = 0;
};

inline constexpr std::uint32_t kMessageBit = 0x80000000;

// A send or a receive. The client writes the first part and submits the slot, which is the daemon's until it is
// completed; the daemon reads it once, and writes the rest before the completion: who the other rank is and what that
// has posted, where the two have found each other.
struct MessageSlot {
  std::uint32_t peer = 0;  // of a send the destination; of a receive the source, or kAnyRank
  std::uint8_t sends = 0;  // 1: a send
  Dtype dtype{};
  std::uint16_t reserved = 0;
  std::uint64_t tag = 0;
  std::uint64_t count = 0;   // elements, at most kMaxElements
  std::uint64_t offset = 0;  // of the buffer in its segment; any, where `count` is 0
  std::uint32_t segment = 0;
  float urgency = 0;  // in [0, 1]; of a send
  std::uint64_t other_count = 0;
  std::uint32_t other_rank = 0;
  Dtype other_dtype{};
  std::uint8_t reserved2[3] = {};
  std::uint32_t set = 0;  // number of the process set whose message it is: others do not match. Ranks are the job's
  std::uint32_t reserved3 = 0;
};
static_assert(sizeof(MessageSlot) == 64);

// The ring memory: one page of indices, then the submission ring, then the completion ring, then kMessageSlots slots.
// Single producer, single consumer each. The daemon copies an entry once and validates the copy (law 16); an index that
// cannot be ends the session.
struct RingPage {
  alignas(64) std::atomic<std::uint32_t> submitted;  // written by the client
  alignas(64) std::atomic<std::uint32_t> taken;      // written by the daemon
  alignas(
      64) std::atomic<std::uint32_t> completed;  // written by the daemon; also the futex that waiting clients sleep on
  std::atomic<std::uint32_t> waiters;            // written by the client: threads asleep on `completed`
  alignas(64) std::atomic<std::uint32_t> consumed;         // written by the client
  alignas(64) std::atomic<std::uint32_t> daemon_sleeping;  // set by the daemon: 1 asks for a write to the eventfd (law
                                                           // 17); the client that makes it 0 writes
  alignas(64) std::atomic<std::uint64_t> client_beats;     // written by the client's helper thread: it lives
  alignas(64) std::atomic<std::uint64_t> daemon_beats;     // written by the daemon's session thread: it lives
  alignas(64) std::atomic<std::uint32_t> failed;  // written by the daemon: 1 once the job has failed and `error` is set
  std::atomic<std::uint32_t> observe;             // written by the daemon: 1 while it wants to be told of waits
  // Written by the client, for people who look at the job: how long its threads have been blocked in waits, in ns, all
  // together; and the thread (Linux's number) that submitted or waited last.
  alignas(64) std::atomic<std::uint64_t> blocked_ns;
  std::atomic<std::uint32_t> waiter;
  ErrorBody error;
  // Written by the client, for the same people: how often a stream of a GPU was made to wait for an operation. For how
  // long it waits there, the client does not know.
  alignas(64) std::atomic<std::uint64_t> stream_waits;
};
inline constexpr std::size_t kRingPageBytes = 4096;
static_assert(sizeof(RingPage) <= kRingPageBytes);

inline constexpr std::size_t ring_memory_bytes(std::uint32_t entries) {
  return kRingPageBytes + entries * (sizeof(SubmissionEntry) + sizeof(CompletionEntry)) +
         kMessageSlots * sizeof(MessageSlot);
}
inline constexpr std::size_t message_slots_offset(std::uint32_t entries) {
  return ring_memory_bytes(entries) - kMessageSlots * sizeof(MessageSlot);
}

}  // namespace tensorlane::protocol
