// What happens to an operation inside a host: the local ranks' buffers are brought together before the network, and the
// result is spread after it (law 13). Cut into blocks of at most 256 KiB, the most urgent one first (law 9).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/exchange.h"
#include "common/protocol/plan.h"
#include "daemon/engine/batching/batch_gate.h"
#include "daemon/engine/iterations.h"
#include "daemon/ports/executor.h"

namespace tensorlane::host {

// One rank's buffer of one tensor, in this process.
using Buffer = std::span<std::byte>;

// What a step of local work does with the buffers of the local ranks.
enum class LocalStep : std::uint8_t {
  kNone,     // nothing to do
  kReduce,   // leader (or the wide scratch) = sum of all ranks
  kFinish,   // the whole operation, when all ranks live on this host: reduce, divide, and copy to those who get it
  kCollect,  // allgather: every rank's block into the leader's buffer; of an exchange, HostExchange::collect()
  kSpread,   // leader's buffer to all others; of a reduce-scatter, to each rank its block; HostExchange::spread()
};

// One step under way. Plain state: the job fills it, add_block() moves it on. It refers to nothing of the plan, which
// may grow, and so move, while it runs.
struct LocalTask {
  LocalStep step = LocalStep::kNone;
  Sequence sequence;
  std::uint32_t leader = 0;    // local index whose buffer goes to the network
  Buffer wide;                 // float32 scratch for 16-bit sums, or empty
  std::uint64_t elements = 0;  // of all its blocks: the tensor's; of an exchange, those of the listed copies together
  std::uint64_t next = 0;      // first element that is in no block yet
  std::size_t member = 0;      // of a batch: the one that `next` lies in
  std::uint32_t blocks = 0;    // that are under way

  bool all_given() const { return next >= elements; }
};

// The ranks that a step brings together: by local index, their buffers of the tensor and their numbers in the job.
struct LocalRanks {
  std::span<const Buffer> buffers;
  std::span<const std::uint32_t> ranks;
  std::uint32_t world_size = 1;
};

// What a block moves.
struct Moved {
  std::uint64_t reduced = 0, copied = 0;  // bytes
};

// Puts the next block of `task` on `tensor` into `block`, which is empty: at most kMaxOperation bytes of all ranks'
// buffers together. It refers to their memory alone. Blocks of a task may be done at the same time and in any order.
Moved add_block(LocalTask& task, const protocol::PlanTensor& tensor, const LocalRanks& local, ports::Block& block);

// The same for an exchange; `own` is the engines' buffer where that is the daemon's. At most kMaxOperation is copied.
Moved add_exchange_block(LocalTask& task, const protocol::HostExchange& exchange, std::size_t element_bytes,
                         std::span<const Buffer> buffers, Buffer own, ports::Block& block);

// The same for a batch, whose members' buffers are `buffers_of(member)`, by local index as above: kReduce brings their
// sums together in `own`, the batch's buffer (or in task.wide), kSpread gives every rank its members' parts of `own`.
using BuffersOf = std::function<std::span<const Buffer>(TensorId member)>;
Moved add_batch_block(LocalTask& task, const protocol::PlanTensor& batch, Buffer own,
                      std::span<const engine::BatchGate::Member> members, const BuffersOf& buffers_of,
                      ports::Block& block);

// Tasks that wait for their next block, most urgent first: class, then what a client waits for, then older iteration,
// then tensor.
class LocalQueue {
 public:
  struct Key {
    ClassId cls;
    engine::Iteration iteration;
    TensorId tensor;
    bool boosted = false;
    // For the heap, which serves the largest: "less" means less urgent.
    bool operator<(const Key& o) const {
      if (cls != o.cls) return cls > o.cls;
      if (boosted != o.boosted) return o.boosted;
      if (iteration != o.iteration) return iteration > o.iteration;
      return tensor > o.tensor;
    }
  };
  // At most `capacity` tasks: one per tensor. Allocates here, not later.
  void reserve(std::size_t capacity) {
    if (capacity > keys_.capacity()) keys_.reserve(std::max(capacity, 2 * keys_.capacity()));
  }
  bool empty() const { return keys_.empty(); }
  const Key& top() const { return keys_.front(); }
  void push(const Key& key) {
    keys_.push_back(key);
    std::push_heap(keys_.begin(), keys_.end());
  }
  void pop() {
    std::pop_heap(keys_.begin(), keys_.end());
    keys_.pop_back();
  }
  // Raises the task of this tensor, if it is here. As long as there are tasks: once per wait that blocks.
  void raise(TensorId tensor) {
    const auto found = std::ranges::find(keys_, tensor, &Key::tensor);
    if (found == keys_.end()) return;
    found->boosted = true;
    std::make_heap(keys_.begin(), keys_.end());
  }
  void clear() { keys_.clear(); }

 private:
  std::vector<Key> keys_;
};

}  // namespace tensorlane::host
