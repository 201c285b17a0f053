#include "daemon/engine/ordering/admission.h"

#include <algorithm>
#include <limits>

#include "common/base/assert.h"

namespace tensorlane::engine {

using protocol::Ordering;

Admission::Gate Admission::gate_of(Ordering ordering) {
  switch (ordering) {
    case Ordering::kFunnel:
    case Ordering::kConcurrent:
      return Gate::kBeforeLocal;
    case Ordering::kChained:
    case Ordering::kCounters:
      return Gate::kBeforeNetwork;
    case Ordering::kTagged:
    case Ordering::kNegotiated:
      break;
  }
  return Gate::kNone;
}

// Of one group, each in its turn.
std::uint32_t Admission::most_running() const {
  switch (ordering_) {
    case Ordering::kFunnel:
    case Ordering::kChained:
      return 1;
    case Ordering::kConcurrent:
      return concurrent_;
    case Ordering::kCounters:
    case Ordering::kTagged:
    case Ordering::kNegotiated:
      break;
  }
  return std::numeric_limits<std::uint32_t>::max();
}

// A tensor's place in order_ is among those of its group, which are as many as its ids.
void Admission::grow(const protocol::Plan& plan, protocol::TensorRange added) {
  ordering_ = plan.ordering;
  concurrent_ = std::max(plan.concurrent, 1u);
  if (gate() == Gate::kNone) return;
  const auto& planned = plan.tensors;
  tensors_.resize(planned.size());
  order_.resize(planned.size());
  std::uint32_t group = 0;
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    if (i == added.first || planned[i].group != planned[i - 1].group) group = new_group(i);
    ++groups_[group].count;
    tensors_[i] = {.group = group, .loose = planned[i].operation == Operation::kPull || planned[i].in_batch()};
    order_[i] = TensorId(i);
    if (i + 1 < added.end() && planned[i + 1].group == planned[i].group) continue;
    std::stable_sort(order_.begin() + groups_[group].first, order_.begin() + i + 1,
                     [&](TensorId a, TensorId b) { return planned[a.value].urgency > planned[b.value].urgency; });
  }
  TL_ASSERT(groups_.size() <= tensors_.size());  // those that are gone have been forgotten: each other has a tensor
  submitted_.resize(tensors_.size() * ranks_);
  waiting_.resize(tensors_.size() * ranks_);
  waits_.resize(groups_.size() * ranks_);
  at_once_.reserve(tensors_.size());
  due_.reserve(groups_.size());
}

std::uint32_t Admission::new_group(std::uint32_t first) {
  auto group = static_cast<std::uint32_t>(groups_.size());
  if (free_groups_.empty()) {
    groups_.emplace_back();
  } else {
    group = free_groups_.back();
    free_groups_.pop_back();
  }
  groups_[group].first = first;
  return group;
}

void Admission::vacate(protocol::TensorRange range) {
  for (std::uint32_t i = range.first; i < std::min<std::size_t>(range.end(), tensors_.size()); ++i) {
    Tensor& t = tensors_[i];
    TL_ASSERT(!t.ready && !t.runs);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) submitted_[of_rank(rank, i)] = false;
    Group& group = groups_[t.group];
    if (--group.count == 0) {
      group = {.queued = group.queued};
      free_groups_.push_back(t.group);
    }
    t = {};
  }
}

void Admission::submitted(std::uint32_t rank, TensorId tensor) {
  submitted_[of_rank(rank, tensor.value)] = true;
}

void Admission::waits(std::uint32_t rank, TensorId tensor) {
  if (waiting_[of_rank(rank, tensor.value)]) return;
  waiting_[of_rank(rank, tensor.value)] = true;
  const std::uint32_t group = tensors_[tensor.value].group;
  ++waits_[of_rank(rank, group)];
  look_at(group);
}

void Admission::ready(TensorId tensor) {
  Tensor& t = tensors_[tensor.value];
  TL_ASSERT(!t.ready && !t.runs);
  t.ready = true;
  ++held_;
  if (t.loose) return at_once_.push_back(tensor);
  ++groups_[t.group].held;
  look_at(t.group);
}

void Admission::left_network(TensorId tensor) {
  if (gate() == Gate::kBeforeNetwork) release(tensor);
}

void Admission::completed(TensorId tensor) {
  release(tensor);
  tensors_[tensor.value].runs = false;
  const std::uint32_t group = tensors_[tensor.value].group;
  look_at(group);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!waiting_[of_rank(rank, tensor.value)]) continue;
    waiting_[of_rank(rank, tensor.value)] = false;
    --waits_[of_rank(rank, group)];
  }
}

void Admission::release(TensorId tensor) {
  Tensor& t = tensors_[tensor.value];
  if (!t.counted) return;
  t.counted = false;
  --groups_[t.group].running;
  look_at(t.group);
}

void Admission::look_at(std::uint32_t group) {
  if (groups_[group].queued) return;
  groups_[group].queued = true;
  due_.push_back(group);
}

bool Admission::next(TensorId* tensor) {
  if (!at_once_.empty()) {
    *tensor = at_once_.back();
    at_once_.pop_back();
    begin(*tensor);
    return true;
  }
  while (!due_.empty()) {
    Group& group = groups_[due_.back()];
    if (next_of(group, tensor)) return true;
    group.queued = false;
    due_.pop_back();
  }
  return false;
}

// Comes to an end: what is held is in its place, and the turn stops there at the latest.
bool Admission::next_of(Group& group, TensorId* tensor) {
  while (group.held > 0) {
    const TensorId id = order_[group.first + group.turn];
    Tensor& t = tensors_[id.value];
    const bool begins = t.ready && !t.loose;
    if (begins && group.running >= most_running()) return false;
    if (!begins && !t.loose) {
      if (!left_out(id)) return false;
      t.loose = true;
      ++loose_;
    }
    group.turn = (group.turn + 1) % group.count;
    if (!begins) continue;
    t.counted = true;
    ++group.running;
    --group.held;
    begin(id);
    *tensor = id;
    return true;
  }
  return false;
}

// A rank waits for something of the group and could have submitted this, but has not.
bool Admission::left_out(TensorId tensor) const {
  if (tensors_[tensor.value].runs) return false;
  const std::uint32_t group = tensors_[tensor.value].group;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (waits_[of_rank(rank, group)] > 0 && !submitted_[of_rank(rank, tensor.value)]) return true;
  }
  return false;
}

void Admission::begin(TensorId tensor) {
  tensors_[tensor.value].ready = false;
  tensors_[tensor.value].runs = true;
  --held_;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) submitted_[of_rank(rank, tensor.value)] = false;
}

std::optional<TensorId> Admission::missing() const {
  for (const Group& group : groups_) {
    if (group.held == 0) continue;
    std::uint32_t turn = group.turn;
    while (tensors_[order_[group.first + turn].value].loose) turn = (turn + 1) % group.count;
    const TensorId tensor = order_[group.first + turn];
    if (tensors_[tensor.value].runs) continue;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (!submitted_[of_rank(rank, tensor.value)]) return tensor;
    }
  }
  return std::nullopt;
}

}  // namespace tensorlane::engine
