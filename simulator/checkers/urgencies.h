// How urgent the operations of one engine are, judged from outside: from the events that it takes (law 9).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/engine/iterations.h"
#include "daemon/engine/types.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// Of what waits in one class: smaller goes first.
struct Urgency {
  bool unboosted = true;
  std::uint64_t iteration = 0;
  bool contribution = true;  // results go before contributions
  double delay = 0;          // -urgency
  std::uint32_t tensor = 0;
  auto operator<=>(const Urgency&) const = default;
};

// One per engine.
class Urgencies {
 public:
  explicit Urgencies(const Scenario& scenario);

  // The tensors have joined the plan.
  void added(const protocol::Plan& plan, protocol::TensorRange range);
  // The engine was told that the tensor has this urgency and travels in this class from its next operation on.
  void prioritised(TensorId tensor, float urgency, ClassId cls) { tensors_[tensor.value].next = {urgency, cls}; }
  // The engine has taken this event in a step at `now`. Returns the tensor whose operation it boosts, if it does.
  std::optional<TensorId> stepped(Time now, const engine::Event& event);
  void completed(TensorId tensor) { tensors_[tensor.value].open = false; }

  // Of the operation that runs, or ran last.
  ClassId cls(TensorId tensor) const { return tensors_[tensor.value].running.cls; }
  std::uint64_t sequence(TensorId tensor) const { return tensors_[tensor.value].sequence; }
  bool open(TensorId tensor) const { return tensors_[tensor.value].open; }
  // Since when it is boosted, if it is.
  std::optional<Time> boosted(TensorId tensor) const { return tensors_[tensor.value].boosted; }
  Urgency of(TensorId tensor, bool contribution) const;

 private:
  struct Priority {
    float urgency = 0;
    ClassId cls;
  };
  struct Tensor {
    Priority running, next;
    std::uint64_t sequence = 0;
    engine::Iteration iteration;
    bool open = false;
    std::optional<Time> boosted;
  };
  std::vector<Tensor> tensors_;
  engine::Iterations iterations_;
};

}  // namespace tensorlane::simulator
