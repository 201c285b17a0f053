#include "client-lib/src/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tensorlane::client {

ArenaAllocator::~ArenaAllocator() {
  for (const Area& area : areas_) munmap(area.segment.base, area.segment.bytes);
}

Result<std::byte*> ArenaAllocator::allocate(std::uint64_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "cannot allocate zero bytes", "", "ask for at least one");
  constexpr std::uint64_t kMost = std::uint64_t{1} << 46;
  if (bytes > kMost) {
    return Status(Code::kResourceExhausted, "cannot allocate " + std::to_string(bytes) + " bytes",
                  "the limit is " + std::to_string(kMost), "ask for less");
  }
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto find = [&]() -> std::byte* {
    std::lock_guard lock(mutex_);
    for (Area& area : areas_) {
      if (std::byte* memory = take(area, bytes)) return memory;
    }
    return nullptr;
  };
  if (std::byte* memory = find()) return memory;
  std::lock_guard growing(grow_mutex_);
  if (std::byte* memory = find()) return memory;  // another thread has grown it meanwhile
  std::uint64_t have = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Area& area : areas_) have += area.segment.bytes;
  }
  // A quarter of what there is keeps the number of segments small.
  Result<Segment> segment = grow_(std::max({kSegment, bytes, have / 4}));
  if (!segment.ok() && segment.status().code() == Code::kResourceExhausted) segment = grow_(bytes);
  if (!segment.ok()) return segment.status();
  std::lock_guard lock(mutex_);
  Area& area = areas_.emplace_back();
  area.segment = *segment;
  area.free.emplace(0, segment->bytes);
  return take(area, bytes);
}

std::byte* ArenaAllocator::take(Area& area, std::uint64_t bytes) {
  const auto it =
      std::find_if(area.free.begin(), area.free.end(), [&](const auto& range) { return range.second >= bytes; });
  if (it == area.free.end()) return nullptr;
  const auto [offset, room] = *it;
  area.free.erase(it);
  if (room > bytes) area.free.emplace(offset + bytes, room - bytes);
  area.used.emplace(offset, bytes);
  std::byte* memory = area.segment.base + offset;
  if (offset < area.fresh) std::memset(memory, 0, std::min(bytes, area.fresh - offset));
  area.fresh = std::max(area.fresh, offset + bytes);
  return memory;
}

Status ArenaAllocator::release(std::byte* memory) {
  std::lock_guard lock(mutex_);
  Area* area = const_cast<Area*>(area_of(memory));
  const auto block = area != nullptr ? area->used.find(static_cast<std::uint64_t>(memory - area->segment.base))
                                     : decltype(area->used.end()){};
  if (area == nullptr || block == area->used.end()) {
    return Status(Code::kInvalidArgument, "cannot free this memory",
                  "it does not come from tl_alloc, or was freed before", "pass what tl_alloc gave");
  }
  auto [offset, bytes] = *block;
  area->used.erase(block);
  auto after = area->free.lower_bound(offset);
  if (after != area->free.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = area->free.erase(after);
  }
  if (after != area->free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return {};
    }
  }
  area->free.emplace(offset, bytes);
  return {};
}

std::uint64_t ArenaAllocator::block_bytes(const std::byte* memory) const {
  std::lock_guard lock(mutex_);
  const Area* area = area_of(memory);
  if (area == nullptr) return 0;
  const auto block = area->used.find(static_cast<std::uint64_t>(memory - area->segment.base));
  return block == area->used.end() ? 0 : block->second;
}

std::optional<Place> ArenaAllocator::locate(const void* memory, std::uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto* start = static_cast<const std::byte*>(memory);
  const Area* area = area_of(start);
  if (area == nullptr) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(start - area->segment.base);
  if (bytes > area->segment.bytes - offset) return std::nullopt;
  return Place{area->segment.number, offset};
}

const ArenaAllocator::Area* ArenaAllocator::area_of(const std::byte* memory) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  for (const Area& area : areas_) {
    const auto base = reinterpret_cast<std::uintptr_t>(area.segment.base);
    if (address >= base && address - base < area.segment.bytes) return &area;
  }
  return nullptr;
}

}  // namespace tensorlane::client
