// A lock that the thread sanitizer does not see.
#pragma once

#include <mutex>

namespace tensorlane::fake_cuda {

// While it lives, the thread sanitizer ignores what this thread reads, writes and synchronises: what one lock of the
// whole driver orders by chance, a real driver does not order, and a race of the program under test must not hide
// behind it. Without effect in other builds, and with watch_self=1 in TENSORLANE_FAKE_CUDA.
class Hidden {
 public:
  Hidden();
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;
  ~Hidden();
};

// Holds the mutex, hidden.
class Lock {
 public:
  explicit Lock(std::mutex& mutex) : held_(mutex) {}
  std::unique_lock<std::mutex>& held() { return held_; }

 private:
  Hidden hidden_;  // first, so that it outlives the lock
  std::unique_lock<std::mutex> held_;
};

}  // namespace tensorlane::fake_cuda
