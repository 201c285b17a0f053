#include "daemon/engine/grants.h"

#include <algorithm>
#include <bit>

#include "common/base/assert.h"

namespace tensorlane::engine {

bool Extent::complete() const {
  const std::uint64_t operations = (length + kMaxOperation.value - 1) / kMaxOperation.value;
  return static_cast<std::uint64_t>(std::popcount(arrived)) == operations;
}

const char* Extent::check(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0) return "payload of no bytes";
  if (offset > length || bytes > length - offset) return "payload outside its grant";
  if (offset % kMaxOperation.value != 0 || bytes != std::min(kMaxOperation.value, length - offset))
    return "payload that is not cut at 256 KiB";
  if ((arrived >> offset / kMaxOperation.value & 1) != 0) return "payload that has already arrived";
  return nullptr;
}

const char* Extent::take(std::uint64_t offset, std::uint64_t bytes) {
  if (const char* fault = check(offset, bytes)) return fault;
  arrived |= std::uint64_t{1} << offset / kMaxOperation.value;
  return nullptr;
}

void GrantTable::grow(std::uint32_t capacity) {
  TL_ASSERT(capacity <= kMaxCapacity);
  const auto old = static_cast<std::uint32_t>(slots_.size());
  if (capacity <= old) return;
  slots_.resize(capacity);
  for (std::uint32_t i = old; i < capacity; ++i) put_free(i);
}

void GrantTable::put_free(std::uint32_t index) {
  slots_[index].next_free = kNone;
  if (last_free_ == kNone) {
    first_free_ = index;
  } else {
    slots_[last_free_].next_free = index;
  }
  last_free_ = index;
}

std::uint32_t GrantTable::give(const Grant& grant) {
  TL_ASSERT(first_free_ != kNone);
  const std::uint32_t index = first_free_;
  Slot& slot = slots_[index];
  first_free_ = slot.next_free;
  if (first_free_ == kNone) last_free_ = kNone;
  slot.grant = grant;
  slot.live = true;
  ++in_use_;
  return index | slot.generation << kIndexBits;
}

const Grant* GrantTable::find(std::uint32_t id) const {
  const std::uint32_t index = id & (kMaxCapacity - 1);
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  return slot.live && slot.generation == id >> kIndexBits ? &slot.grant : nullptr;
}

void GrantTable::retire(std::uint32_t id) {
  TL_ASSERT(find(id) != nullptr);
  const std::uint32_t index = id & (kMaxCapacity - 1);
  Slot& slot = slots_[index];
  slot.live = false;
  // Generation 0 is left out: with index 0 it would make the id 0.
  slot.generation = slot.generation + 1 < 1u << (32 - kIndexBits) ? slot.generation + 1 : 1;
  --in_use_;
  put_free(index);
}

}  // namespace tensorlane::engine
