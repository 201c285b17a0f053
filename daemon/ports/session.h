// A client session as a lane sees it, and the session module's face towards control.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/session.h"

namespace tensorlane::ports {

// Where a tensor's buffer lies in a session's arenas.
struct BufferPlace {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What a client's process is, and what it says of itself, which may be anything.
struct ClientTimes {
  std::uint32_t process = 0;       // its pid, as the kernel says
  std::uint32_t waiter = 0;        // the thread of it that submitted or waited last, as it says
  std::uint64_t blocked_ns = 0;    // that its threads have been blocked in waits, all together, as it says
  std::uint64_t stream_waits = 0;  // how often a stream of a GPU was made to wait for an operation, as it says
};

// The data-path face of one client: its rings and arenas, in the daemon's own mapping. All calls on the lane's thread,
// except where said. A client can write anything into shared memory at any time: entries are copied once and the copy
// is what counts (law 16).
class ClientSession {
 public:
  virtual ~ClientSession() = default;

  // Copies up to out.size() submissions, oldest first. Returns how many. An impossible index ends the session: take()
  // returns 0 from then on and the session module reports the client's death to control.
  virtual std::size_t take(std::span<protocol::SubmissionEntry> out) = 0;
  // Gives one completion and wakes a waiting client. Never full: a client with more than kMaxOutstanding operations
  // pending has broken the protocol.
  virtual void complete(const protocol::CompletionEntry& entry) = 0;
  // Copies a slot that a submission with kSubmitMessage has named; false when there is no such slot.
  virtual bool message(std::uint32_t /*slot*/, protocol::MessageSlot* /*out*/) { return false; }
  // Its message is over: writes the daemon's part of `outcome` to the slot, then completes it with `code`.
  virtual void complete_message(std::uint32_t /*slot*/, const protocol::MessageSlot& /*outcome*/, Code /*code*/) {}
  // Gives an entry that says which parts of a result are in place; it is left out where the ring has little room.
  virtual void parts_in_place(const protocol::CompletionEntry& entry) = 0;
  // Asks the client to tell when it waits for an operation (kFlagWaited), or no longer. It may leave some out.
  virtual void observe_waits(bool on) = 0;
  // Publishes the error of the job, marks the rings as failed and wakes everybody who waits.
  virtual void fail(const Status& cause) = 0;
  virtual ClientTimes times() const { return {}; }
  // Asks the client to write to wake_fd() with its next submission (law 17). Returns false when a submission is there
  // already: do not sleep.
  virtual bool arm_wake() = 0;
  virtual void disarm_wake() = 0;
  // An eventfd that the client writes to.
  virtual int wake_fd() const = 0;
  // The daemon's mapping of a piece of an arena: empty when the place is not inside a segment of this session. Valid as
  // long as the session object (memory that a client takes away reads as zeros, law 16).
  virtual std::span<std::byte> map(const BufferPlace& place) = 0;
  // The whole segment that the place lies in, as map() would answer a piece of it.
  virtual std::span<std::byte> segment(const BufferPlace& place) = 0;
  // Whether the client has sealed this segment, which exists, so that no other process can make holes in it. The first
  // call of a segment asks the kernel.
  virtual bool is_sealed(std::uint32_t /*segment*/) { return true; }
  // True once the client is gone (any reason). Any thread.
  virtual bool dead() const = 0;
};

// Questions of all clients that control has not answered yet. The session module keeps within it, and shares it between
// users; so control takes them all.
inline constexpr std::size_t kMaxRequests = std::size_t{1} << 16;

using SessionId = Strong<struct SessionIdTag, std::uint64_t>;

// What a client says of itself. The session module has checked version, sizes and the peer's uid; control checks the
// secret.
struct JoinRequest {
  SessionId session;
  std::string job;
  std::string leader;             // MASTER_ADDR
  std::uint16_t leader_port = 0;  // MASTER_PORT; 0 where there is none
  std::uint32_t rank = 0, world_size = 0, local_rank = 0, local_world_size = 0;
  std::uint32_t uid = 0, pid = 0;
  Duration timeout{};  // how long the client waits for joined(): an error that names the missing ranks should come by
                       // then; 0: no limit
  Secret secret;
  std::shared_ptr<ClientSession> client;
};

struct JoinInfo {
  Epoch epoch;
  std::uint32_t hosts = 0;
  HostIndex host_index;
  Duration detection;
  std::string host = {};  // the name of this one in the fabric file
};

// In place of the time for which a client waits: it does not, and does not come back to the group.
inline constexpr Duration kForGood{-1};

// Control as the session module sees it. Thread-safe; calls are queued.
class JobControl {
 public:
  virtual ~JobControl() = default;
  virtual void join(JoinRequest request) = 0;  // answer: SessionEvents::joined
  // All tensors of a group. Answer: SessionEvents::registered, once every rank has registered the group; of a process
  // set: every one of its `ranks`, which are ascending, this one among them. None: all ranks of the job.
  virtual void register_group(SessionId session, std::uint32_t request, std::string group,
                              std::vector<protocol::TensorBody> tensors, std::vector<std::uint32_t> ranks) = 0;
  // The client waits no longer for this registration: its job fails, and the error names the ranks that are missing.
  virtual void overdue(SessionId session, std::uint32_t request) = 0;
  // The tensors of a group, on which the client has completed `operations` together. It waits for `patience`; 0: as
  // long as it takes; or kForGood. Answer: SessionEvents::unregistered, once every rank has unregistered the group, or
  // not.
  virtual void unregister_group(SessionId session, std::uint32_t request, std::string group, std::uint64_t operations,
                                Duration patience) = 0;
  // The client is gone. ok: it said goodbye; else why (died, hung, wrote rubbish): its job fails with that cause.
  virtual void leave(SessionId session, Status why) = 0;
  // The status of this daemon as JSON, as far as user `uid` may see it. Answer: SessionEvents::status.
  virtual void status(SessionId session, std::uint32_t uid, std::uint32_t request) = 0;
  // A question of user `uid`, as text (daemon/control/questions.h). Answer: SessionEvents::status.
  virtual void ask(SessionId session, std::uint32_t uid, std::uint32_t request, std::string question) = 0;
};

// The session module as control sees it. Thread-safe; calls are queued.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  virtual void joined(SessionId session, Result<JoinInfo> info) = 0;
  virtual void registered(SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) = 0;
  // How many tensors of the client went.
  virtual void unregistered(SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) = 0;
  // The job has failed; the session stays open only so that the client can read the error.
  virtual void job_failed(SessionId session, Status cause) = 0;
  // After leave(ok): nothing of the client is in flight, its memory may go.
  virtual void left(SessionId session) = 0;
  virtual void status(SessionId session, std::uint32_t request, std::string json) = 0;
};

}  // namespace tensorlane::ports
