// Horovod's tensor fusion (section 7): small tensors that become ready in one cycle travel as one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/assert.h"
#include "common/base/dtype.h"
#include "common/base/units.h"

namespace tensorlane::engine {

struct FusionSettings {
  Bytes buffer = mib(64);               // Horovod's default
  Duration cycle = milliseconds(5);     // between two looks at the ready queue
  std::uint32_t most_tensors = 65'536;  // ready at once; more is a broken invariant
};

// The ready queue of one host, and which of it travels together. Allocates in its constructor only. One thread. Whether
// a tensor is ready on all hosts is asked before: groups shape sums, so all hosts must push in one order (law 1).
class Fusion {
 public:
  explicit Fusion(const FusionSettings& settings) : settings_(settings) {
    queue_.reserve(settings.most_tensors);
    group_.reserve(settings.most_tensors);
  }

  // `tensor` is ready. Returns when to call cycle(), at most one cycle from now; earlier calls do no harm.
  Time push(Time now, TensorId tensor, Dtype dtype, Bytes size) {
    TL_ASSERT(queue_.size() < settings_.most_tensors);
    if (queue_.empty()) due_ = now + settings_.cycle;
    queue_.push_back({tensor, dtype, size});
    return due_;
  }

  // Nothing while nothing is ready.
  std::optional<Time> due() const { return queue_.empty() ? std::nullopt : std::optional(due_); }

  // When the cycle is over, empties the ready queue: calls move(group) with the tensors of one transfer, again and
  // again. A group begins with the tensor that is ready longest and takes, in the order of the queue, those of the same
  // dtype that fit into the buffer with it; what is larger than the buffer travels by itself. The span is valid during
  // the call only.
  template <typename Move>
  void cycle(Time now, Move&& move) {
    if (queue_.empty() || now < due_) return;
    while (!queue_.empty()) {
      take_group();
      move(std::span<const TensorId>(group_));
    }
  }

 private:
  struct Ready {
    TensorId tensor;
    Dtype dtype;
    Bytes size;
  };

  void take_group() {
    group_.clear();
    Bytes used;
    const Dtype dtype = queue_.front().dtype;
    // A tensor that does not fit ends nothing: smaller ones behind it still may (Horovod's look-ahead).
    std::erase_if(queue_, [&](const Ready& ready) {
      const bool fits = group_.empty() || (ready.dtype == dtype && used + ready.size <= settings_.buffer);
      if (!fits) return false;
      used += ready.size;
      group_.push_back(ready.tensor);
      return true;
    });
  }

  FusionSettings settings_;
  Time due_;
  std::vector<Ready> queue_;
  std::vector<TensorId> group_;
};

// What every node of a ring sends, and receives, to sum up `size` bytes: 2 (N - 1) / N * D (Horovod, section 3). 0 for
// one node.
constexpr double ring_bytes_per_node(std::uint32_t nodes, Bytes size) {
  return nodes < 2 ? 0 : 2.0 * (nodes - 1) / nodes * static_cast<double>(size.value);
}

}  // namespace tensorlane::engine
