// One worker's queue, between the thread that gives it work and the worker itself.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/base/assert.h"

namespace tensorlane::reduce {

// Of two items: the one that the worker does, and the next, which it finds when it is done. Neither a lock nor a system
// call while the worker is awake. It takes the kind of atomic as a parameter, so that a test can run it in every order
// of its steps (tests/unit/base/interleavings.h).
template <typename T, template <typename> typename Atomic = std::atomic>
class WorkQueue {
 public:
  static constexpr std::uint32_t kDepth = 2;

  // ---- the giving thread ----
  std::uint32_t under_way() const { return given_.load(std::memory_order_relaxed) - returned_; }
  // Fewer than kDepth are under way.
  void give(T* item) {
    const std::uint32_t given = given_.load(std::memory_order_relaxed);
    TL_ASSERT(given - returned_ < kDepth);
    items_[given % kDepth] = item;
    // Either the worker sees it before it sleeps, or it is seen here that it sleeps.
    given_.store(given + 1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst)) given_.notify_one();
  }
  // Whether the worker has done something that take_back() has not returned yet. After Bell::arm(), either this is
  // true, or the worker's ring() is.
  bool has_done() const { return finished_.load(std::memory_order_seq_cst) != returned_; }
  // The first item that is done; has_done().
  T* take_back() { return items_[returned_++ % kDepth]; }
  bool all_done() const { return finished_.load(std::memory_order_acquire) == given_.load(std::memory_order_relaxed); }

  // ---- the worker ----
  bool has_next() const { return given_.load(std::memory_order_acquire) != taken_; }
  // Until has_next(), or for no reason.
  void sleep() {
    sleeping_.store(true, std::memory_order_seq_cst);
    given_.wait(taken_, std::memory_order_seq_cst);
    sleeping_.store(false, std::memory_order_relaxed);
  }
  T* next() const { return items_[taken_ % kDepth]; }
  // The next item is done. Ring the giving thread's bell afterwards.
  void finish() { finished_.store(++taken_, std::memory_order_seq_cst); }

 private:
  std::array<T*, kDepth> items_{};  // by count of what was given
  std::uint32_t returned_ = 0;      // the giving thread's
  alignas(64) Atomic<std::uint32_t> given_{0};
  Atomic<bool> sleeping_{false};
  alignas(64) Atomic<std::uint32_t> finished_{0};
  std::uint32_t taken_ = 0;  // the worker's
};

}  // namespace tensorlane::reduce
