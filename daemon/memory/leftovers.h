// Segments that the daemon is done with and a client is not: it has them open, or mapped. What they take stays charged
// to their owner until nobody has them any more (law 19): else a client that comes again and again has ever more.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "common/base/ledger.h"

namespace tensorlane::memory {

// Any thread.
class Leftovers {
 public:
  struct Segment {
    int fd = -1;  // with an open file description that no client has
    std::vector<Ledger::Charge> charges;
  };
  Leftovers() = default;
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers();

  // Takes over a segment that is unmapped here. Gives it back at once where nobody else has it.
  void add(Segment segment);
  // Gives back what nobody else has any more: for gigabytes that takes seconds, and nobody waits for it in add().
  void sweep();
  // None is charged any more.
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

 private:
  std::mutex mutex_;
  std::vector<Segment> segments_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace tensorlane::memory
