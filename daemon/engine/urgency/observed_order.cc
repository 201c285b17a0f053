#include "daemon/engine/urgency/observed_order.h"

#include <algorithm>
#include <numeric>

#include "common/base/assert.h"
#include "daemon/engine/urgency/layer_order.h"

namespace tensorlane::engine {

ObservedOrder::ObservedOrder(std::uint32_t tensors, std::uint32_t ranks, ObservedOrderSettings settings)
    : settings_(settings),
      learning_(settings.learned > 0 ? ranks : 0),
      ranks_(ranks),
      tensors_(tensors),
      last_(static_cast<std::size_t>(tensors) * ranks),
      order_(tensors) {}

void ObservedOrder::wait(std::uint32_t rank, TensorId tensor, Sequence sequence) {
  TL_ASSERT(rank < ranks_.size() && tensor.value < tensors_.size());
  Rank& r = ranks_[rank];
  const std::uint32_t end = settings_.skipped + settings_.learned;
  if (r.iteration >= end) return;
  Last& last = last_[static_cast<std::size_t>(rank) * tensors_.size() + tensor.value];
  if (sequence <= last.sequence) return;
  if (last.sequence.value > 0 && last.iteration == r.iteration) {
    r.place = 0;
    if (++r.iteration == end) {
      --learning_;
      return;
    }
  }
  last = {r.iteration, sequence};
  if (r.iteration >= settings_.skipped) {
    tensors_[tensor.value].places += r.place;
    ++tensors_[tensor.value].waits;
  }
  ++r.place;
}

// By mean place; a product in place of two quotients, so that equal means are equal. Places are at most tensors,
// iterations and ranks multiplied: far from an overflow.
bool ObservedOrder::before(std::uint32_t a, std::uint32_t b) const {
  const Tensor &x = tensors_[a], &y = tensors_[b];
  if (x.waits == 0 || y.waits == 0) return (x.waits == 0) != (y.waits == 0) ? x.waits > 0 : a < b;
  const auto left = x.places * y.waits, right = y.places * x.waits;
  return left != right ? left < right : a < b;
}

void ObservedOrder::urgencies(std::span<float> urgencies) {
  TL_ASSERT(learned() && urgencies.size() == tensors_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) { return before(a, b); });
  const auto count = static_cast<std::uint32_t>(order_.size());
  for (std::uint32_t place = 0; place < count; ++place) urgencies[order_[place]] = layer_order(place, count);
}

}  // namespace tensorlane::engine
