// Checker "order": what a host sends leaves in the order of law 9, judged from outside: from the frames it got and
// sent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "daemon/engine/iterations.h"
#include "daemon/engine/types.h"
#include "simulator/checkers/findings.h"
#include "simulator/checkers/limits.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One per host.
class OrderChecker {
 public:
  // `limits` outlives it, and is told of everything that is sent.
  OrderChecker(HostIndex host, const Scenario& scenario, LimitChecker& limits, Findings& findings)
      : host_(host), scenario_(scenario), limits_(limits), findings_(findings) {
    for (const protocol::PlanTensor& tensor : scenario.plan.tensors) next_.push_back({tensor.urgency, tensor.cls});
    priorities_ = next_;
    running_.resize(next_.size());
  }

  // The engine was told that the tensor has this urgency and travels in this class from its next operation on.
  void prioritised(TensorId tensor, float urgency, ClassId cls) { next_[tensor.value] = {urgency, cls}; }

  // The engine has taken this event in a step at `now`: what was picked before it may be less urgent than what comes
  // after.
  void stepped(Time now, const engine::Event& event);
  // pick() at `now` has returned these for `flow`.
  void picked(Time now, engine::Flow flow, std::span<const engine::Send> sends);
  // A flow of a class more urgent than `cls` for which something granted waits although `can_go` says that it has room.
  template <typename CanGo>
  std::optional<engine::Flow> waiting_above(Time now, ClassId cls, CanGo&& can_go) const {
    if (scenario_.engine.single_queue) return std::nullopt;
    for (const auto& [flow, grants] : waiting_) {
      if (flow.cls >= cls || grants.empty()) continue;
      const engine::Flow way{flow.peer, limits_.travels(now, flow.cls)};
      if (way.cls < cls && can_go(way)) return flow;
    }
    return std::nullopt;
  }

 private:
  // Smaller goes first: older iteration, results before contributions, urgency, tensor (law 9).
  using Key = std::tuple<std::uint64_t, bool, double, std::uint32_t>;
  using Grant = std::pair<std::uint16_t, std::uint32_t>;  // peer, id
  Key key(const protocol::FrameHeader& header, bool contribution) const;
  bool raised(const protocol::FrameHeader& h) const { return raised_.contains({h.tensor.value, h.sequence.value}); }
  // A granted send of class `of` that leaves in `flow`.
  void check_order(Time now, engine::Flow flow, ClassId of, const protocol::FrameHeader& sent, const Key& key);
  void check_against_waiting(engine::Flow flow, const protocol::FrameHeader& sent, const Key& key);

  struct Priority {
    float urgency = 0;
    ClassId cls;
  };
  HostIndex host_;
  // The operation of a tensor that runs.
  struct Running {
    std::uint64_t sequence = 0;
    engine::Iteration iteration;
  };
  std::vector<Running> running_;  // by tensor
  engine::Iterations iterations_;
  std::vector<Priority> priorities_, next_;  // by tensor: of the operation that runs, and of the next
  const Scenario& scenario_;
  LimitChecker& limits_;
  Findings& findings_;
  struct Granted {
    protocol::FrameHeader header;
    Time at;              // it came
    bool picked = false;  // at least in part
  };
  std::map<Grant, Granted> granted_;                              // every grant for a contribution that came
  std::map<engine::Flow, std::map<Key, std::uint64_t>> waiting_;  // granted, not picked; how many
  std::map<std::pair<engine::Flow, ClassId>, Key> last_;  // picked since the last event, by the class it belongs to
  std::set<std::pair<std::uint32_t, std::uint64_t>> raised_;
};

}  // namespace tensorlane::simulator
