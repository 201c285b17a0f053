// The training process of one rank: submits every tensor once per iteration, in an order of its own, and checks what
// comes back. It never waits on a tensor before it has submitted the others of that iteration (law 2).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/protocol/parts.h"
#include "common/protocol/session.h"
#include "simulator/checkers/findings.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/clock/trace.h"
#include "simulator/host/client_messages.h"
#include "simulator/host/memory.h"
#include "simulator/workload/values.h"

namespace tensorlane::simulator {

// The results that all clients must see, computed once. Checker "sum".
class Results {
 public:
  Results(const Scenario& scenario, const Values& values, Findings& findings);
  // `got` is the buffer of `rank` when (tensor, sequence) completed there.
  void check(Rank rank, TensorId tensor, Sequence sequence, std::span<const std::byte> got);
  // `got` is the buffer of `rank` when parts of the result were said to be in place there. Checker "parts".
  void check_parts(Rank rank, TensorId tensor, Sequence sequence, const protocol::PartRun& parts,
                   std::span<const std::byte> got);

 private:
  const std::vector<std::byte>& expected(TensorId tensor, Sequence sequence);
  void check_owned(Rank rank, const protocol::PlanTensor& planned, Sequence sequence, std::span<const std::byte> got,
                   std::span<const std::byte> expected);
  struct Expected {
    std::uint64_t sequence = 0;
    std::vector<std::byte> bytes;
  };
  const Scenario& scenario_;
  const Values& values_;
  Findings& findings_;
  std::vector<std::array<Expected, 2>> expected_;  // per tensor: hosts are at most one iteration apart
};

class Client {
 public:
  struct Context {
    const Scenario& scenario;
    EventQueue& events;
    SimMemory& memory;
    const Values& values;
    Results& results;
    Findings& findings;
    const Trace& trace;
    std::function<void(const protocol::SubmissionEntry&)> submit;  // to the daemon
    MessageChecker& message_checker;
    std::function<void(std::uint32_t slot, const protocol::MessageSlot&)> post;  // to the daemon
  };
  Client(HostIndex host, Rank rank, Context context, Random random);

  // The first `tensors` of the plan may be used.
  void start(std::size_t tensors);
  // So many may be used from now on. After start().
  void allow(std::size_t tensors);
  // All that it was to do with these tensors before they leave the plan is over.
  bool is_done_with(protocol::TensorRange range) const;
  // They have left it, and are registered again.
  void register_again(protocol::TensorRange range);
  // From the daemon: the operation is over and the buffer is ours again.
  void completed(TensorId tensor, Sequence sequence, bool ok);
  // From the daemon: these parts of the result are in place. Checker "parts".
  void placed(TensorId tensor, Sequence sequence, const protocol::PartRun& parts);
  // From the daemon: the job has failed, and so has everything that is pending.
  void fail();
  // Of the tensors, empty where they are not its own; and behind them of all messages.
  std::vector<Descriptor> buffers() const;
  Rank rank() const { return rank_; }
  // It registers the tensor.
  bool has(TensorId tensor) const { return tensors_[tensor.value].is_ours; }
  void set_frozen(bool frozen);
  void kill() {
    dead_ = true;
    messages_.kill();
  }

  // Every iteration of every tensor is over, and every message; or one has failed and none is with the daemon.
  bool finished() const;
  bool failed() const { return failed_ || messages_.failed(); }
  // The tensor is one of its own, and (tensor, sequence) is submitted and not complete, or not submitted yet; between
  // hosts counts go on when a tensor is registered again.
  bool holds(TensorId tensor, Sequence sequence) const;
  std::uint64_t pending() const { return pending_ + messages_.open(); }
  ClientMessages& messages() { return messages_; }
  std::uint64_t completed_operations() const { return completed_; }
  std::uint64_t completed_of_sets() const { return completed_of_sets_; }
  // Operations that it has begun in parts, and parts of their results that the daemon has said to be in place.
  std::uint64_t begun_in_parts() const { return begun_in_parts_; }
  std::uint64_t parts_placed() const { return parts_placed_; }
  std::vector<Time> completion_times() const;  // of the last completion of each tensor
  // The buffers that are ours still hold what we left there. Checker "memory".
  void check_buffers() const;
  // Text for reports: which operations the daemon has.
  std::string describe_pending() const;

 private:
  // An operation whose contribution comes to exist in parts.
  struct InParts {
    std::vector<std::byte> contribution;  // all of it
    std::uint64_t missing = 0;            // parts that are not in the buffer
    std::uint64_t placed = 0;             // parts of the result that are in place
    bool whole = false;                   // the daemon knows that all is in the buffer
    bool stands = false;                  // until the client thaws
  };
  struct Tensor {
    Descriptor buffer;
    std::uint64_t sequence = 0;  // of the last submission
    std::uint64_t base = 0;      // of those, what came before it was registered again
    std::uint64_t most = 0;      // of them, for now
    bool is_ours = true;         // else it is of other ranks, or a batch, which the daemon makes of them
    bool pending = false;
    bool poisoned = false;
    Time completed;
    std::optional<InParts> in_parts;
  };
  void schedule();
  void act();
  void submit(std::size_t index);
  void start_iteration();
  void wait_for(std::size_t index);
  void poison(std::size_t index);
  void check_poison(std::size_t index) const;
  std::byte poison_byte(std::size_t index, std::uint64_t offset) const;

  // ---- client_parts.cc ----
  bool begins_in_parts(const protocol::PlanTensor& planned);
  void begin_in_parts(std::size_t index);
  void go_on_later(std::size_t index);
  void go_on(std::size_t index, std::uint64_t sequence);
  void say_whole(std::size_t index);
  void write_parts(std::size_t index, const protocol::PartRun& parts);
  void end_in_parts(std::size_t index, bool ok);
  void check_placed(std::size_t index) const;
  template <typename Visit>
  void each_byte(std::size_t index, const protocol::PartRun& parts, Visit&& visit) const;

  HostIndex host_;
  Rank rank_;
  Context context_;
  Random random_;
  Random of_parts_;
  ClientMessages messages_;
  std::vector<Tensor> tensors_;
  std::uint64_t operations_ = 0;        // in all
  std::size_t allowed_ = 0;             // of them, from the front
  std::vector<std::size_t> to_submit_;  // from the back
  std::uint64_t iteration_ = 0;
  Random program_;                           // in_step: the same on all hosts, begun anew with each iteration
  std::optional<std::size_t> waits_before_;  // in_step: what it waits for before it goes on
  std::uint64_t pending_ = 0, completed_ = 0, completed_of_sets_ = 0;
  std::uint64_t begun_in_parts_ = 0, parts_placed_ = 0;
  bool scheduled_ = false, frozen_ = false, dead_ = false, failed_ = false;
};

}  // namespace tensorlane::simulator
