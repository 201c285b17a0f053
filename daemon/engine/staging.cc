#include "daemon/engine/staging.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::engine {

StagingPool::StagingPool(std::uint32_t pages) : next_(pages, kNone), free_(pages) {
  for (std::uint32_t i = 0; i + 1 < pages; ++i) next_[i] = i + 1;
  if (pages > 0) first_free_ = 0;
}

void StagingPool::reserve(ClassId cls, std::uint32_t pages) {
  reserve_[cls.value] = pages;
  std::uint64_t all = 0;
  for (std::uint32_t r : reserve_) all += r;
  TL_ASSERT(all <= this->pages());
}

bool StagingPool::fits(ClassId cls, std::uint64_t pages) const {
  std::uint64_t kept = 0;
  for (std::size_t c = 0; c < reserve_.size(); ++c) {
    if (c != cls.value && reserve_[c] > used_[c]) kept += reserve_[c] - used_[c];
  }
  return kept + pages <= free_;
}

std::uint32_t StagingPool::take(ClassId cls, std::uint64_t pages) {
  TL_ASSERT(pages > 0 && pages <= free_);
  const std::uint32_t first = first_free_;
  std::uint32_t last = first;
  for (std::uint64_t i = 1; i < pages; ++i) last = next_[last];
  first_free_ = next_[last];
  next_[last] = kNone;
  free_ -= static_cast<std::uint32_t>(pages);
  used_[cls.value] += static_cast<std::uint32_t>(pages);
  most_used_ = std::max(most_used_, used());
  return first;
}

std::uint32_t StagingPool::page(std::uint32_t first, std::uint64_t n) const {
  for (; n > 0; --n) first = next_[first];
  TL_ASSERT(first != kNone);
  return first;
}

void StagingPool::release(ClassId cls, std::uint32_t first) {
  while (first != kNone) {
    const std::uint32_t next = next_[first];
    next_[first] = first_free_;
    first_free_ = first;
    first = next;
    ++free_;
    TL_ASSERT(used_[cls.value] > 0);
    --used_[cls.value];
  }
}

}  // namespace tensorlane::engine
