// Segments that the daemon is done with and a client is not: it has them open, or mapped. What they take stays charged
// to their owner until nobody has them any more (law 19): else a client that comes again and again has ever more.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/status.h"

namespace tensorlane::memory {

// Any thread.
class Leftovers {
 public:
  Leftovers() = default;
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers();

  // Has the kernel say when nobody has the file any more. The answer is the file's name in add(). Error:
  // ResourceExhausted.
  Result<int> watch(int fd);
  // Closes the descriptor of a segment that is unmapped here. If nobody else has the file, that gives its memory and
  // its charges back at once.
  void add(int watch, int fd, std::vector<Ledger::Charge> charges);
  // Gives back what is charged for files that nobody has any more.
  void sweep();
  // Segments that are still charged.
  std::size_t count() const { return count_.load(std::memory_order_relaxed); }
  bool empty() const { return count() == 0; }

 private:
  using Segments = std::map<int, std::vector<Ledger::Charge>>;  // by watch
  // Watches of files that nobody has any more; under mutex_.
  std::vector<int> gone();
  std::vector<int> gone_by_list();

  std::mutex mutex_;
  int inotify_ = -1;  // once something is watched
  Segments segments_;
  bool missed_ = false;  // not every watch that is gone was told
  std::atomic<std::size_t> count_{0};
};

}  // namespace tensorlane::memory
