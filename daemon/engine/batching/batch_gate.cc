#include "daemon/engine/batching/batch_gate.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::engine {

void BatchGate::grow(const protocol::Plan& plan, protocol::TensorRange added, std::uint32_t ranks) {
  TL_ASSERT(ranks <= ranks_);
  index_.resize(plan.tensors.size(), kNone);
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    const protocol::PlanTensor& t = plan.tensors[i];
    if (!t.is_batch()) continue;
    index_[i] = new_batch();
    batches_[index_[i]] = {t.members, ranks, t.members * ranks, {}};
    std::fill_n(left_.begin() + std::ptrdiff_t{index_[i]} * ranks_, ranks_, t.members);
  }
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    const protocol::PlanTensor& t = plan.tensors[i];
    if (!t.in_batch()) continue;
    index_[i] = index_[t.batch];
    batches_[index_[i]].members.push_back({t.id, t.batch_offset, t.elements});
  }
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    if (!plan.tensors[i].is_batch()) continue;
    Batch& batch = batches_[index_[i]];
    TL_ASSERT(batch.members.size() == batch.count);
    std::ranges::sort(batch.members, {}, &Member::offset);
  }
  TL_ASSERT(batches_.size() <= index_.size());  // those that are gone have been forgotten
}

void BatchGate::vacate(protocol::TensorRange range) {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    const std::uint32_t batch = std::exchange(index_[i], kNone);
    if (batch == kNone || batches_[batch].count == 0) continue;  // another tensor of it came before
    batches_[batch] = {};
    free_.push_back(batch);
  }
}

std::uint32_t BatchGate::new_batch() {
  if (!free_.empty()) {
    const std::uint32_t batch = free_.back();
    free_.pop_back();
    return batch;
  }
  batches_.emplace_back();
  left_.resize(left_.size() + ranks_);
  return static_cast<std::uint32_t>(batches_.size() - 1);
}

std::span<const BatchGate::Member> BatchGate::members(TensorId batch) const {
  if (batch.value >= index_.size() || index_[batch.value] == kNone) return {};
  return batch_of(batch).members;
}

BatchGate::Step BatchGate::submitted(std::uint32_t rank, TensorId member) {
  Batch& batch = batch_of(member);
  std::uint32_t& left = left_[std::size_t{index_[member.value]} * ranks_ + rank];
  TL_ASSERT(left > 0 && batch.left > 0);
  --left;
  --batch.left;
  return {.of_rank = left == 0, .of_host = batch.left == 0};
}

void BatchGate::completed(TensorId batch) {
  Batch& b = batch_of(batch);
  b.left = b.count * b.ranks;
  std::fill_n(left_.begin() + std::ptrdiff_t{index_[batch.value]} * ranks_, ranks_, b.count);
}

}  // namespace tensorlane::engine
