#include "daemon/engine/batching/batch_gate.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::engine {

void BatchGate::grow(const protocol::Plan& plan) {
  const std::size_t known = index_.size(), known_batches = batches_.size();
  index_.resize(plan.tensors.size(), kNone);
  for (std::size_t i = known; i < plan.tensors.size(); ++i) {
    if (!plan.tensors[i].is_batch()) continue;
    index_[i] = static_cast<std::uint32_t>(batches_.size());
    batches_.push_back({.first = static_cast<std::uint32_t>(members_.size()), .count = plan.tensors[i].members});
    batches_.back().left = batches_.back().count * ranks_;
    members_.resize(members_.size() + batches_.back().count);
    left_.insert(left_.end(), ranks_, batches_.back().count);
  }
  std::vector<std::uint32_t> filled(batches_.size());
  for (std::size_t i = known; i < plan.tensors.size(); ++i) {
    const protocol::PlanTensor& t = plan.tensors[i];
    if (!t.in_batch()) continue;
    index_[i] = index_[t.batch];
    const Batch& batch = batches_[index_[i]];
    TL_ASSERT(filled[index_[i]] < batch.count);
    members_[batch.first + filled[index_[i]]++] = {t.id, t.batch_offset, t.elements};
  }
  for (std::size_t b = known_batches; b < batches_.size(); ++b) {
    const std::span<Member> of_batch = std::span(members_).subspan(batches_[b].first, batches_[b].count);
    std::ranges::sort(of_batch, {}, &Member::offset);
  }
}

std::span<const BatchGate::Member> BatchGate::members(TensorId batch) const {
  if (batch.value >= index_.size() || index_[batch.value] == kNone) return {};
  const Batch& b = batch_of(batch);
  return std::span(members_).subspan(b.first, b.count);
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
  b.left = b.count * ranks_;
  std::fill_n(left_.begin() + std::ptrdiff_t{index_[batch.value]} * ranks_, ranks_, b.count);
}

}  // namespace tensorlane::engine
