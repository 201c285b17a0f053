// Staging: where contributions under grants wait to be summed. A fixed pool of pages that is never overrun and in which
// every class has a reserve.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

// A page holds one transport operation, so that no payload crosses pages.
inline constexpr std::uint64_t kPageBytes = kMaxOperation.value;

constexpr std::uint64_t pages_for(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}

class StagingPool {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  explicit StagingPool(std::uint32_t pages);

  std::uint32_t pages() const { return static_cast<std::uint32_t>(next_.size()); }
  std::uint32_t used() const { return pages() - free_; }
  std::uint32_t most_used() const { return most_used_; }

  // `pages` of the pool are kept for this class from now on: what others take never eats into the part of them that is
  // not in use. While pages are in use a raised reserve fills up as they come back. The reserves together must fit the
  // pool.
  void reserve(ClassId cls, std::uint32_t pages);
  std::uint32_t reserved(ClassId cls) const { return reserve_[cls.value]; }
  // Whether this class may take that many now. Always true while it stays within its reserve.
  bool fits(ClassId cls, std::uint64_t pages) const;
  // A chain of `pages` pages (at least one); the first of them. The caller has asked fits().
  std::uint32_t take(ClassId cls, std::uint64_t pages);
  // The n-th page of a chain.
  std::uint32_t page(std::uint32_t first, std::uint64_t n) const;
  void release(ClassId cls, std::uint32_t first);

 private:
  std::vector<std::uint32_t> next_;
  std::uint32_t first_free_ = kNone;
  std::uint32_t free_ = 0, most_used_ = 0;
  std::array<std::uint32_t, kMaxDataClasses> reserve_{}, used_{};
};

}  // namespace tensorlane::engine
