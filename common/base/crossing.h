// How one thread hands things to another without a lock: a bounded queue, and a bell for who sleeps.
//
// Both take the kind of atomic as a parameter, so that a test can run them in every order of their steps
// (tests/unit/base/interleavings.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tensorlane {

// A queue from one thread to one other.
template <typename T, template <typename> typename Atomic = std::atomic>
class Crossing {
 public:
  // `capacity`: at least 1.
  explicit Crossing(std::size_t capacity) : slots_(capacity) {}

  // The sender's. False when it is full; the item is then unchanged. Ring the receiver's bell afterwards.
  [[nodiscard]] bool push(T&& item) {
    const std::uint64_t pushed = pushed_.load(std::memory_order_relaxed);
    if (pushed - popped_.load(std::memory_order_acquire) == slots_.size()) return false;
    slots_[pushed % slots_.size()] = std::move(item);
    // Either the receiver sees it before it sleeps, or the bell sees that it sleeps (Bell).
    pushed_.store(pushed + 1, std::memory_order_seq_cst);
    return true;
  }

  // The receiver's. False when there is nothing.
  bool pop(T* item) {
    const std::uint64_t popped = popped_.load(std::memory_order_relaxed);
    if (pushed_.load(std::memory_order_acquire) == popped) return false;
    *item = std::move(slots_[popped % slots_.size()]);
    popped_.store(popped + 1, std::memory_order_release);
    return true;
  }
  // The receiver's, after Bell::arm().
  bool empty() const { return pushed_.load(std::memory_order_seq_cst) == popped_.load(std::memory_order_relaxed); }

 private:
  alignas(64) Atomic<std::uint64_t> pushed_{0};
  alignas(64) Atomic<std::uint64_t> popped_{0};
  alignas(64) std::vector<T> slots_;
};

// Wakes one thread that sleeps, and costs nothing while it is awake. The sleeper arms it, looks once more whether there
// is something to do, and sleeps only if not. Who has something for it makes that visible by a seq_cst store, and then
// rings.
template <template <typename> typename Atomic = std::atomic>
class BasicBell {
 public:
  // The sleeper's.
  void arm() { armed_.store(true, std::memory_order_seq_cst); }
  void disarm() { armed_.store(false, std::memory_order_relaxed); }
  // Anybody else's. True: the sleeper is to be woken, by whoever gets this answer.
  [[nodiscard]] bool ring() {
    return armed_.load(std::memory_order_seq_cst) && armed_.exchange(false, std::memory_order_seq_cst);
  }

 private:
  Atomic<bool> armed_{false};
};
using Bell = BasicBell<>;

}  // namespace tensorlane
