// Batches of the plan (engine/batching): an operation for the engines, whose buffer is the daemon's own. What its
// members' clients have is summed and copied into it once all of them are here, and out of it at the end.
#include "daemon/host/job.h"

namespace tensorlane::host {

// A rank has come to a batch when it has submitted the last of its members.
void Job::submit_member(std::uint32_t local, const protocol::PlanTensor& member, Time now) {
  LocalTensor& t = tensors_[member.id.value];
  if (t.arrived++ == 0) {
    t.first_arrival = now;
    begin_pending(t, member.id);
    begin_pending(tensors_[member.batch], TensorId(member.batch));
  }
  if (t.all_arrived()) {
    t.ready = now;
    t.reported = Duration();
  }
  const engine::BatchGate::Step step = gate_.submitted(t.members->place_of(local), member.id);
  if (!step.of_rank) return;
  const protocol::PlanTensor& batch = plan_.tensors[member.batch];
  LocalTensor& whole = tensors_[member.batch];
  if (gate_of(batch) != engine::Admission::Gate::kNone) admission_.submitted(local, batch.id);
  if (whole.arrived++ == 0) whole.first_arrival = now;
  if (step.of_host) all_arrived(whole, batch, now);
}

Moved Job::add_block(LocalTensor& t, const protocol::PlanTensor& tensor, ports::Block& block) {
  if (const auto exchange = exchange_of(tensor))
    return add_exchange_block(t.task, *exchange, dtype_size(tensor.dtype), t.buffers, t.own.storage, block);
  if (!tensor.is_batch()) {
    const LocalRanks ranks{t.buffers, t.members->numbers(), t.members->world_size()};
    return host::add_block(t.task, tensor, ranks, block);
  }
  const auto buffers_of = [this](TensorId member) { return std::span<const Buffer>(tensors_[member.value].buffers); };
  return add_batch_block(t.task, tensor, t.own.storage, gate_.members(tensor.id), buffers_of, block);
}

void Job::complete_members(const LocalTensor& t, TensorId batch, bool ok, Time now) {
  TL_ASSERT(t.task.step == LocalStep::kNone);
  gate_.completed(batch);
  for (const engine::BatchGate::Member& member : gate_.members(batch))
    complete(tensors_[member.tensor.value], plan_.tensors[member.tensor.value], ok, now);
}

}  // namespace tensorlane::host
