// A queue in one piece of memory, which grows to the most that ever was in it, and stays.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::datagram {

template <typename T>
class Ring {
 public:
  bool empty() const { return count_ == 0; }
  T& front() {
    TL_ASSERT(count_ > 0);
    return at(0);
  }
  void push_back(T item) {
    if (count_ == items_.size()) grow();
    at(count_++) = std::move(item);
  }
  void pop_front() {
    TL_ASSERT(count_ > 0);
    first_ = (first_ + 1) & (items_.size() - 1);
    --count_;
  }
  // Walks over all that is in it.
  void erase(const T& item) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i)
      if (!(at(i) == item)) at(kept++) = at(i);
    count_ = kept;
  }

 private:
  T& at(std::size_t i) { return items_[(first_ + i) & (items_.size() - 1)]; }
  void grow() {
    std::vector<T> more(items_.empty() ? 8 : items_.size() * 2);  // a power of 2
    for (std::size_t i = 0; i < count_; ++i) more[i] = std::move(at(i));
    items_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace tensorlane::datagram
