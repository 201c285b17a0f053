// What is in flight in one class, over all its flows (law 8).
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::tcp {

class Flow;

// Counts bytes given to send() that peers' kernels have not acknowledged: what waits in flows' queues plus what
// SIOCOUTQ says of every socket that has something outstanding. Asked at most once in a poll; between, what the kernel
// takes is added. One thread.
class ClassWindow {
 public:
  explicit ClassWindow(Bytes window) : window_(window) {}

  void queued(std::uint64_t bytes) { queued_ += bytes; }
  // The kernel took `bytes` that were queued in `flow`.
  void taken(Flow& flow, std::uint64_t bytes);
  // `flow` goes; `queued` bytes are still in its queue.
  void forget(Flow& flow, std::uint64_t queued);

  // `poll` numbers the poll that asks.
  Bytes in_flight(std::uint64_t poll);
  Bytes window() const { return window_; }

 private:
  const Bytes window_;
  std::uint64_t queued_ = 0;
  std::uint64_t unacknowledged_ = 0;  // of the sockets, when last asked, plus what was taken since
  std::uint64_t asked_in_ = ~std::uint64_t{0};
  std::vector<Flow*> outstanding_;
};

}  // namespace tensorlane::tcp
