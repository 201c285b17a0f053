#include "simulator/host/batches.h"

#include <algorithm>

#include "simulator/workload/values.h"

namespace tensorlane::simulator {

namespace {

constexpr std::byte kIdle{0xba};

Descriptor part(const Descriptor& whole, const engine::BatchGate::Member& member, std::size_t size) {
  return whole.slice(member.offset * size, member.elements * size);
}

}  // namespace

Batches::Batches(HostIndex host, const Scenario& scenario, SimMemory& memory, Findings& findings)
    : host_(host), scenario_(scenario), memory_(memory), findings_(findings), states_(scenario.plan.tensors.size()) {
  gate_.grow(scenario.plan);
  for (const protocol::PlanTensor& t : scenario.plan.tensors) {
    if (!t.is_batch()) continue;
    engine::TensorReady& ready = states_[t.id.value].ready;
    ready.tensor = t.id;
    ready.buffer = memory_.allocate(t.elements * dtype_size(t.dtype));
    if (needs_wide(t, scenario.hosts())) ready.wide = memory_.allocate(t.elements * sizeof(float));
    poison(states_[t.id.value]);
  }
}

std::optional<engine::TensorReady> Batches::submitted(const engine::TensorReady& member) {
  states_[member.tensor.value].ready = member;
  if (!gate_.submitted(0, member.tensor).of_host) return std::nullopt;
  const TensorId id = scenario_.plan.tensors[member.tensor.value].operation_id();
  State& batch = states_[id.value];
  check_idle(id.value);
  batch.runs = true;
  ++batch.ready.sequence.value;
  for (const auto& m : gate_.members(id)) copy(m, true, scenario_.plan.tensors[id.value].wide_contributions);
  return batch.ready;
}

void Batches::completed(TensorId batch, bool ok) {
  for (const auto& m : gate_.members(batch)) {
    if (ok) copy(m, false, false);
  }
  gate_.completed(batch);
  states_[batch.value].runs = false;
  poison(states_[batch.value]);
}

void Batches::copy(const engine::BatchGate::Member& member, bool in, bool wide) {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[member.tensor.value];
  const engine::TensorReady& own = states_[member.tensor.value].ready;
  const engine::TensorReady& batch = states_[planned.batch].ready;
  const std::span<std::byte> outside = memory_.resolve(wide ? own.wide : own.buffer);
  const std::span<std::byte> inside = memory_.resolve(wide ? part(batch.wide, member, sizeof(float))
                                                           : part(batch.buffer, member, dtype_size(planned.dtype)));
  if (inside.empty() || inside.size() != outside.size()) {
    return findings_.fail("memory", "host {}: {} bytes of tensor {} do not fit {} bytes of batch {}", host_.value,
                          outside.size(), member.tensor.value, inside.size(), planned.batch);
  }
  if (in) {
    std::ranges::copy(outside, inside.begin());
  } else {
    std::ranges::copy(inside, outside.begin());
  }
}

void Batches::poison(const State& state) {
  for (const Descriptor& place : {state.ready.buffer, state.ready.wide})
    std::ranges::fill(memory_.resolve(place), kIdle);
}

void Batches::check_idle(std::size_t batch) const {
  const State& state = states_[batch];
  if (state.runs) return;
  for (const Descriptor& place : {state.ready.buffer, state.ready.wide}) {
    if (std::ranges::all_of(memory_.resolve(place), [](std::byte b) { return b == kIdle; })) continue;
    findings_.fail("memory", "host {}: batch {} was written after sequence {} had completed", host_.value, batch,
                   state.ready.sequence.value);
  }
}

void Batches::check_idle() const {
  for (const protocol::PlanTensor& t : scenario_.plan.tensors) {
    if (t.is_batch()) check_idle(t.id.value);
  }
}

}  // namespace tensorlane::simulator
