#include "simulator/checkers/urgencies.h"

namespace tensorlane::simulator {

using engine::Event;

Urgencies::Urgencies(const Scenario& scenario) {
  for (const protocol::PlanTensor& planned : scenario.plan.tensors) {
    const Priority priority{planned.urgency, planned.cls};
    tensors_.push_back({.running = priority, .next = priority});
  }
}

void Urgencies::added(const protocol::Plan& plan, protocol::TensorRange range) {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    const Priority priority{plan.tensors[i].urgency, plan.tensors[i].cls};
    tensors_[i] = {.running = priority, .next = priority};
  }
}

std::optional<TensorId> Urgencies::stepped(Time now, const Event& event) {
  if (event.kind == Event::Kind::kTensorReady) {
    Tensor& t = tensors_[event.tensor_ready.tensor.value];
    t.running = t.next;
    t.sequence = event.tensor_ready.sequence.value;
    t.iteration = iterations_.begin(t.iteration);
    t.open = true;
    t.boosted.reset();
  }
  if (event.kind != Event::Kind::kBoost || event.boost.tensor.value >= tensors_.size()) return std::nullopt;
  Tensor& t = tensors_[event.boost.tensor.value];
  if (!t.open || t.boosted || t.sequence != event.boost.sequence.value) return std::nullopt;
  t.boosted = now;
  return event.boost.tensor;
}

Urgency Urgencies::of(TensorId tensor, bool contribution) const {
  const Tensor& t = tensors_[tensor.value];
  return {!t.boosted, t.iteration.value, contribution, -static_cast<double>(t.running.urgency), tensor.value};
}

}  // namespace tensorlane::simulator
