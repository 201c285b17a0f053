// Urgency by observed order: what a job waits for first, in its first iterations, is most urgent. It needs no graph and
// no positions of layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

struct ObservedOrderSettings {
  std::uint32_t skipped = 1;  // iterations at the beginning, in which a job still waits for other reasons
  std::uint32_t learned = 5;  // iterations after those
};

// Learns from the waits of the ranks of one host. What it says is this host's own: urgencies order queues, they shape
// no sums (law 1), so that hosts need not agree. A function of the waits, in the order in which each rank did them; how
// the ranks interleave does not matter. Allocates in its constructor only. One thread.
class ObservedOrder {
 public:
  // Tensors have the ids 0 to tensors - 1, ranks of this host 0 to ranks - 1.
  ObservedOrder(std::uint32_t tensors, std::uint32_t ranks, ObservedOrderSettings settings = {});

  // `rank` waits for `tensor`, blocked or not. An iteration of a rank ends when it waits for a tensor that it waited
  // for in this iteration, for a later operation on it: `sequence` (law 5) tells that from a repeated wait, which
  // counts once. Waits beyond the learned iterations change nothing.
  void wait(std::uint32_t rank, TensorId tensor, Sequence sequence);

  // Of how many it learns.
  std::size_t tensors() const { return tensors_.size(); }

  // Every rank has ended its learned iterations.
  bool learned() const { return learning_ == 0; }

  // Whether some rank has waited for it in a learned iteration.
  bool waited_for(TensorId tensor) const { return tensors_[tensor.value].waits > 0; }

  // By tensor, once learned(): 1 for what is waited for first, down to 1 / tensors. Tensors in the order of the mean
  // place among the waits of an iteration, over the iterations and ranks that waited for them; of equal ones, and of
  // those that nobody waited for, which come last, the lower id first. `urgencies` has an entry per tensor.
  void urgencies(std::span<float> urgencies);

 private:
  struct Rank {
    std::uint32_t iteration = 0;
    std::uint32_t place = 0;  // waits of this iteration so far
  };
  struct Tensor {
    std::uint64_t places = 0;  // sum over learned waits
    std::uint32_t waits = 0;
  };
  struct Last {
    std::uint32_t iteration = 0;
    Sequence sequence;  // 0: never
  };

  bool before(std::uint32_t a, std::uint32_t b) const;

  ObservedOrderSettings settings_;
  std::uint32_t learning_;  // ranks that have not ended their learned iterations
  std::vector<Rank> ranks_;
  std::vector<Tensor> tensors_;
  std::vector<Last> last_;  // by rank, then tensor
  std::vector<std::uint32_t> order_;
};

}  // namespace tensorlane::engine
