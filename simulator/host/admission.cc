// Between the client and the engine: the plan's ordering, as daemon/lane applies it.
#include <bit>

#include "simulator/host/lane.h"

namespace tensorlane::simulator {

using engine::Admission;
using engine::Event;

// The client has submitted something, in a batch or not.
void Lane::submit_member(const Event& ready) {
  const TensorId tensor = ready.tensor_ready.tensor;
  if (operation_of(tensor) == tensor) return offer(ready);
  held_[tensor.value].ready = ready;
  if (const auto batch = batches_.submitted(ready.tensor_ready))
    offer({.kind = Event::Kind::kTensorReady, .tensor_ready = *batch});
}

// An operation is ready.
void Lane::offer(const Event& ready) {
  const TensorId tensor = ready.tensor_ready.tensor;
  around_.admission.submitted(self_, tensor);
  held_[tensor.value].ready = ready;
  if (around_.scenario.plan.ordering == protocol::Ordering::kNegotiated) {
    rails_[0]->submit({.kind = Event::Kind::kOffer, .offer = {tensor}});
  } else if (admission_.gate() == Admission::Gate::kNone) {
    begin(tensor);
  } else {
    admission_.submitted(0, tensor);
    admission_.ready(tensor);
    begin_admitted();
  }
}

// The client waits for something: the engines hear of it when they have it.
void Lane::raise(const Event& waits) {
  const TensorId tensor = operation_of(waits.raise.tensor);
  Event raise = waits;
  raise.raise.tensor = tensor;
  around_.admission.waits(self_, tensor);
  const bool incomplete = is_batch(tensor) && operations_[tensor.value].rails_left == 0;
  if (held_[tensor.value].ready || incomplete) {
    held_[tensor.value].raise = raise;
  } else {
    for (auto& rail : rails_) rail->submit(raise);
  }
  if (admission_.gate() != Admission::Gate::kNone) {
    admission_.waits(0, tensor);
    begin_admitted();
  }
}

void Lane::begin_admitted() {
  for (TensorId tensor; state_.running() && admission_.next(&tensor);) begin(tensor);
}

// Every rail carries its slices of the same buffer.
void Lane::begin(TensorId tensor) {
  Held& held = held_[tensor.value];
  around_.admission.begins(self_, tensor);
  operations_[tensor.value] = {rails_.size(), true};
  for (auto& rail : rails_) {
    rail->submit(*held.ready);
    if (held.raise) rail->submit(*held.raise);
  }
  held = {};
  if (!is_batch(tensor)) return;
  for (const auto& member : batches_.members(tensor)) held_[member.tensor.value] = {};
}

void Lane::take_agreed(const engine::Agreed& agreed) {
  for (std::uint64_t bits = agreed.bits; state_.running() && bits != 0; bits &= bits - 1) {
    begin(TensorId(agreed.word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits))));
  }
}

void Lane::note_completed(TensorId tensor) {
  around_.admission.completed(self_, tensor);
  if (admission_.gate() == Admission::Gate::kNone) return;
  admission_.left_network(tensor);
  admission_.completed(tensor);
  begin_admitted();
}

// The job is over: what the engine has never seen fails, too.
void Lane::fail_held() {
  for (Held& held : held_) {
    if (!held.ready || is_batch(held.ready->tensor_ready.tensor)) continue;
    const engine::TensorReady ready = std::exchange(held.ready, std::nullopt)->tensor_ready;
    client_->completed(ready.tensor, ready.sequence, false);
  }
}

}  // namespace tensorlane::simulator
