#include "client-lib/src/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "common/base/available_memory.h"

namespace tensorlane::client {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14, which older headers lack

Status no_memory(const char* call) {
  return Status(Code::kResourceExhausted, "cannot make shared memory private",
                std::string(call) + ": " + std::strerror(errno));
}

// Whole pages at `at`, which show `memory` from `offset` on.
Status make_private(std::byte* at, std::uint64_t bytes, int memory, std::uint64_t offset) {
  // Made elsewhere first: when that fails, the old mapping is still there.
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, static_cast<off_t>(offset));
  if (made == MAP_FAILED) return no_memory("mmap");
  if (mremap(made, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
    const Status status = no_memory("mremap");
    munmap(made, bytes);
    return status;
  }
  // A page of it still shows what the daemon writes until it is written to here.
  if (madvise(at, bytes, kPopulateWrite) == 0) return {};
  if (errno != EINVAL) return no_memory("madvise");
  // Linux before 5.14. Changes nothing, also of what another thread writes meanwhile.
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (std::uint64_t i = 0; i < bytes; i += page)
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(at + i), 0, __ATOMIC_RELAXED);
  return {};
}

}  // namespace

ArenaAllocator::~ArenaAllocator() {
  for (const Area& area : areas_) munmap(area.segment.base, area.segment.bytes);
}

Result<std::byte*> ArenaAllocator::allocate(std::uint64_t bytes, bool zeroed) {
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
      if (std::byte* memory = take(area, bytes, zeroed)) return memory;
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
  area.segment = std::move(*segment);
  area.free.emplace(0, area.segment.bytes);
  return take(area, bytes, zeroed);
}

std::byte* ArenaAllocator::take(Area& area, std::uint64_t bytes, bool zeroed) {
  const auto it =
      std::find_if(area.free.begin(), area.free.end(), [&](const auto& range) { return range.second >= bytes; });
  if (it == area.free.end()) return nullptr;
  const auto [offset, room] = *it;
  area.free.erase(it);
  if (room > bytes) area.free.emplace(offset + bytes, room - bytes);
  area.used.emplace(offset, bytes);
  std::byte* memory = area.segment.base + offset;
  if (zeroed && offset < area.fresh) std::memset(memory, 0, std::min(bytes, area.fresh - offset));
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

// Disjoint and ascending. Where they would be more mappings than a process should spend on it, pages between them come
// along.
std::vector<ArenaAllocator::Pages> ArenaAllocator::pages_of(std::span<const std::span<std::byte>> pieces) const {
  constexpr std::size_t kMostMappings = 8192;  // the kernel's limit for a process is 65,530
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<Pages> all;
  for (const std::span<std::byte> piece : pieces) {
    const Area* area = area_of(piece.data());
    if (area == nullptr || piece.empty()) continue;
    const auto offset = static_cast<std::uint64_t>(piece.data() - area->segment.base);
    all.push_back({static_cast<std::size_t>(area - areas_.data()), offset / page * page,
                   (offset + piece.size() + page - 1) / page * page});
  }
  std::sort(all.begin(), all.end(),
            [](const Pages& a, const Pages& b) { return a.area != b.area ? a.area < b.area : a.from < b.from; });
  for (std::uint64_t gap = 0;; gap = std::max(page, gap * 4)) {
    std::vector<Pages> joined;
    for (const Pages& pages : all) {
      if (!joined.empty() && joined.back().area == pages.area && pages.from <= joined.back().to + gap) {
        joined.back().to = std::max(joined.back().to, pages.to);
      } else {
        joined.push_back(pages);
      }
    }
    all = std::move(joined);
    if (all.size() <= kMostMappings || gap > kSegment) return all;
  }
}

Status ArenaAllocator::cut_off(std::span<const std::span<std::byte>> pieces) {
  std::lock_guard lock(mutex_);
  const std::vector<Pages> all = pages_of(pieces);
  std::uint64_t bytes = 0;
  for (const Pages& pages : all) bytes += pages.to - pages.from;
  // The kernel would grant it and then kill somebody for it.
  const std::uint64_t available = available_memory().value;
  if (available < bytes) {
    return Status(Code::kResourceExhausted, "this host is short of memory",
                  std::to_string(bytes) + " bytes needed, " + std::to_string(available) + " available");
  }
  for (const Pages& pages : all) {
    const Segment& segment = areas_[pages.area].segment;
    TL_RETURN_IF_ERROR(
        make_private(segment.base + pages.from, pages.to - pages.from, segment.memory.get(), pages.from));
  }
  return {};
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

std::span<std::byte> ArenaAllocator::segment_of(const std::byte* memory) const {
  std::lock_guard lock(mutex_);
  const Area* area = area_of(memory);
  return area == nullptr ? std::span<std::byte>() : std::span(area->segment.base, area->segment.bytes);
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
