// Queues with a stated bound. Full is an answer, never a wait and never an allocation.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane {

// A ring of at most `capacity` items for one thread. Nothing is allocated after construction.
template <typename T>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : slots_(capacity) {}

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == slots_.size(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return slots_.size(); }
  std::size_t space() const { return slots_.size() - size_; }

  // False when full; the item is then unchanged.
  [[nodiscard]] bool push(const T& item) {
    if (full()) return false;
    slots_[wrap(head_ + size_)] = item;
    ++size_;
    return true;
  }
  T& front() {
    TL_ASSERT(!empty());
    return slots_[head_];
  }
  const T& front() const {
    TL_ASSERT(!empty());
    return slots_[head_];
  }
  // Item `i` from the front.
  const T& operator[](std::size_t i) const {
    TL_ASSERT(i < size_);
    return slots_[wrap(head_ + i)];
  }
  void pop() {
    TL_ASSERT(!empty());
    head_ = wrap(head_ + 1);
    --size_;
  }
  void clear() { head_ = size_ = 0; }

 private:
  std::size_t wrap(std::size_t i) const { return i >= slots_.size() ? i - slots_.size() : i; }
  std::vector<T> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

// Between threads, for set-up and control traffic (never per slice). push() fails when `capacity` items wait.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}

  [[nodiscard]] bool push(T item) {
    std::lock_guard lock(mutex_);
    if (items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }
  std::optional<T> pop() {
    std::lock_guard lock(mutex_);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::deque<T> items_;
};

}  // namespace tensorlane
