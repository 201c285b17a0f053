// How a job and its rails speak to each other. A job lives on one lane, with its ranks; each rail is one lane's, and
// so are the engines there. Where the two are one lane, these are plain calls; else they travel (remote.h). Answers are
// calls of RailsOwner, which come inside the call or later.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/engine/types.h"
#include "daemon/host/message_desk.h"
#include "daemon/host/prepared.h"
#include "daemon/ports/progress.h"
#include "daemon/ports/telemetry.h"

namespace tensorlane::host {

// The rails of a job that one lane has: what the job has them do. All calls by the thread of the job's lane, in the
// order in which they are to happen. Bounded steps (law 20).
class Rails {
 public:
  virtual ~Rails() = default;

  // Peers may make flows to them. Answer: RailsOwner::rails_settled, for 0.
  virtual void open(Time now) = 0;
  // Tensors `added` of `plan` join the engines, with the memory that the daemon keeps for them: at most some dozens at
  // a time. An error is a rails_failed.
  virtual void extend(const protocol::Plan& plan, protocol::TensorRange added, std::span<const OwnMemory> memory) = 0;
  // Tensors leave the engines: as many at a time.
  virtual void vacate(protocol::TensorRange range) = 0;
  // Memory that goes between hosts, and does no more.
  virtual void map(std::span<std::byte> bytes) = 0;
  virtual void unmap(std::span<std::byte> bytes) = 0;
  // Answer: rails_settled, for `number`, when all that was asked for before is done, and flows to all hosts that the
  // plan needs are up. Numbers grow.
  virtual void settle(std::uint64_t number, Time now) = 0;
  // Where the leader's buffer of a tensor lies, and the segment that it lies in.
  virtual void bind(TensorId tensor, std::span<std::byte> buffer, std::span<std::byte> segment) = 0;
  struct Priority {
    TensorId tensor;
    float urgency = 0;
    ClassId cls;
  };
  virtual void set_priorities(std::span<const Priority> priorities) = 0;

  // The operation goes between hosts now: every rail carries its slices of the tensor. Answer: rails_completed. With
  // `in_parts` its contribution comes to exist part by part, and rails_placed may answer before.
  virtual void start(TensorId tensor, Sequence sequence, bool in_parts, Time now) = 0;
  virtual void part_ready(const engine::PartReady& part, Time now) = 0;
  // A rank is blocked on it (law 9).
  virtual void boost(TensorId tensor, Sequence sequence, Time now) = 0;
  // It is ready here, and begins when it is everywhere. Of the lane that has rail 0. Answer: rails_agreed.
  virtual void offer(TensorId tensor, Time now) = 0;
  // A send or a receive. Of the lane that has rail 0. Answer: rails_message_done.
  virtual void post(const MessagePost& post, Time now) = 0;
  // A peer wants to send to this host, or to receive: opens the flows to it, where this host is the one that makes
  // them. Of the lane that has rail 0.
  virtual void open_flows_to(HostIndex peer, Time now) = 0;
  // How far these requests have come. Of the lane that has rail 0. Answer: rails_messages_wait.
  virtual void look_at_messages(std::span<const std::uint64_t> requests, Time now) = 0;
  // Which hosts these operations wait for. Answer: rails_missing.
  virtual void look_for_missing(std::span<const TensorId> operations, Time now) = 0;

  // Stops sending and closes the flows; what is pending is given up where the job is aborted. Answer: rails_closed.
  // May come again, to abort.
  virtual void close(bool abort, Time now) = 0;
  // The rails of all lanes are closed: gives back what the flows had. Answer: rails_drained, behind a rails_completed
  // that is not ok for each operation that they had.
  virtual void drain(Time now) = 0;
};

// Whose they are: the job. Calls come from inside those of Rails, from a lane's turn, or from a note (remote.h).
class RailsOwner {
 public:
  virtual ~RailsOwner() = default;

  struct Settled {
    std::uint64_t number = 0;
    std::size_t neighbours = 0;        // most hosts to which flows of one rail are up
    std::set<std::string> transports;  // over which these go
    std::uint64_t vacant_slices = 0;   // in tables
    std::shared_ptr<const ports::JobMetrics> metrics;
  };
  virtual void rails_settled(std::size_t lane, const Settled& settled, Time now) = 0;
  // Their part of an operation is over. `tensor`, `sequence`, and the rest as in engine::Complete.
  virtual void rails_completed(const engine::Complete& complete, Time now) = 0;
  // Of an operation that was started in parts.
  virtual void rails_placed(const engine::PartInPlace& part, Time now) = 0;
  // All hosts have offered these operations (engine::Offer).
  virtual void rails_agreed(const engine::Agreed& agreed, Time now) = 0;
  // A send or receive is over.
  virtual void rails_message_done(const engine::MessageDone& done, Time now) = 0;
  // Messages are to go to this host, to which there are no flows, and it is the other one that makes them.
  virtual void rails_want_flows(HostIndex peer) = 0;
  // A peer broke the protocol, or something cannot be had.
  virtual void rails_failed(const Status& cause) = 0;
  // A flow is gone, though nobody has closed it.
  enum class Lost : std::uint8_t {
    kNeighbour,  // all flows to its host had been up
    kDialed,     // this host was making them, and does not try again
    kAwaited,    // the other host was making them, and may try again
  };
  virtual void rails_lost(Lost lost, const Status& cause, Time now) = 0;
  virtual void rails_closed(Time now) = 0;
  virtual void rails_drained(Time now) = 0;
  // Nothing of them is left in any table of the daemon.
  virtual void rails_gone() = 0;

  // ---- reports, about every 100 ms ----
  // Peers have announced these operations before this host has submitted them, ascending, and since when.
  struct AwaitedOperation {
    TensorId tensor;
    Sequence sequence;
    Time since;
    auto operator<=>(const AwaitedOperation&) const = default;
  };
  using Awaited = std::vector<AwaitedOperation>;
  virtual void rails_await(std::size_t lane, const Awaited& awaited) = 0;
  using Missing = std::vector<std::pair<TensorId, HostIndex>>;
  virtual void rails_missing(const Missing& missing, Time now) = 0;
  // Requests, and how far each has come.
  using MessagesWait = std::vector<std::pair<std::uint64_t, engine::MessageStage>>;
  virtual void rails_messages_wait(const MessagesWait& waiting, Time now) = 0;
  // `progress`: of these rails alone.
  virtual void rails_progress(std::size_t lane, const ports::LaneProgress& progress) = 0;
};

}  // namespace tensorlane::host
