// Checker "order": what a host sends leaves in the order of law 9, judged from outside: from the frames it got and
// sent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "daemon/engine/types.h"
#include "simulator/checkers/findings.h"
#include "simulator/checkers/limits.h"
#include "simulator/checkers/urgencies.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One per engine.
class OrderChecker {
 public:
  // `urgencies` and `limits` outlive it; `limits` is told of everything that is sent.
  OrderChecker(HostIndex host, const Scenario& scenario, const Urgencies& urgencies, LimitChecker& limits,
               Findings& findings)
      : host_(host), urgencies_(urgencies), scenario_(scenario), limits_(limits), findings_(findings) {}

  // The engine has taken this event in a step at `now`: what was picked before it may be less urgent than what comes
  // after. `boosted`: the tensor whose operation the event has boosted. After the urgencies were told of it.
  void stepped(Time now, const engine::Event& event, std::optional<TensorId> boosted);
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

  // Whether something granted waits that would go in class `cls` now.
  template <typename CanGo>
  bool waits_in(Time now, ClassId cls, CanGo&& can_go) const {
    if (scenario_.engine.single_queue) return false;
    for (const auto& [flow, grants] : waiting_) {
      if (flow.cls > cls || grants.empty() || limits_.travels(now, flow.cls) != cls) continue;
      if (can_go(engine::Flow{flow.peer, cls})) return true;
    }
    return false;
  }

  // A flow for which something granted waits, and the class in which it could go now, or before `until` because of a
  // limit, by what `can_go` says now.
  template <typename CanGo>
  std::optional<std::pair<engine::Flow, ClassId>> waiting_before(Time now, Time until, CanGo&& can_go) const {
    if (scenario_.engine.single_queue) return std::nullopt;
    for (const auto& [flow, grants] : waiting_) {
      if (grants.empty()) continue;
      for (ClassId cls = flow.cls;; ++cls.value) {
        const bool used_up = limits_.used_up(now, cls);
        const bool in_time = !used_up || limits_.ready_at(now, cls) < until;
        if (in_time && can_go(engine::Flow{flow.peer, cls})) return std::pair(flow, cls);
        if (!used_up) break;
      }
    }
    return std::nullopt;
  }

 private:
  using Grant = std::pair<std::uint16_t, std::uint32_t>;  // peer, id
  void boost(TensorId tensor);
  // A granted send of class `of` that leaves in `flow`.
  void check_order(Time now, engine::Flow flow, ClassId of, const protocol::FrameHeader& sent, const Urgency& mine);
  void check_against_waiting(engine::Flow flow, const protocol::FrameHeader& sent, const Urgency& mine);

  HostIndex host_;
  const Urgencies& urgencies_;
  const Scenario& scenario_;
  LimitChecker& limits_;
  Findings& findings_;
  struct Granted {
    protocol::FrameHeader header;
    Time at;              // it came
    bool picked = false;  // at least in part
  };
  std::map<Grant, Granted> granted_;                                  // every grant for a contribution that came
  std::map<engine::Flow, std::map<Urgency, std::uint64_t>> waiting_;  // granted, not picked; how many
  std::map<std::pair<engine::Flow, ClassId>, Urgency> last_;  // picked since the last event, by the class it belongs to
};

}  // namespace tensorlane::simulator
