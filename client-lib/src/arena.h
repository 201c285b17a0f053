// Shared memory for the program: segments from the daemon, and what is allocated in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client-lib/src/channel.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::client {

// A segment as it is mapped here.
struct Segment {
  std::uint32_t number = 0;  // the daemon's
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  UniqueFd memory;
};

// Where a piece of memory lies, as the daemon knows it.
struct Place {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};

// First fit with coalescing; blocks are multiples of 64 bytes. Segments are asked for when nothing fits, and unmapped
// by the destructor. Any thread.
class ArenaAllocator {
 public:
  static constexpr std::uint64_t kAlignment = 64;
  static constexpr std::uint64_t kSegment = 64 << 20;

  // `grow` maps a new segment of at least the given bytes; one call at a time, and it may block for the daemon's
  // answer.
  explicit ArenaAllocator(std::function<Result<Segment>(std::uint64_t)> grow) : grow_(std::move(grow)) {}
  ~ArenaAllocator();
  ArenaAllocator(const ArenaAllocator&) = delete;
  ArenaAllocator& operator=(const ArenaAllocator&) = delete;

  // Zeroed, unless the caller overwrites it. Errors: InvalidArgument (zero bytes), ResourceExhausted, what `grow` says.
  Result<std::byte*> allocate(std::uint64_t bytes, bool zeroed = true);
  // Errors: InvalidArgument when `memory` is not what allocate() gave.
  Status release(std::byte* memory);
  // Bytes of the block that allocate() gave, or zero.
  std::uint64_t block_bytes(const std::byte* memory) const;
  // Where [memory, memory + bytes) lies, when it is inside one segment.
  std::optional<Place> locate(const void* memory, std::uint64_t bytes) const;
  // The whole segment that it lies in; empty when it is in none. Stays where it is until the destructor.
  std::span<std::byte> segment_of(const std::byte* memory) const;
  // Makes the pages of these pieces of memory this process's own, contents and addresses as they are: what the daemon
  // writes from now on is not seen. Other threads may read and write them meanwhile; nothing of that is lost. Errors:
  // ResourceExhausted; then any part of them may still be shared.
  Status cut_off(std::span<const std::span<std::byte>> pieces);

 private:
  struct Area {
    Segment segment;
    std::map<std::uint64_t, std::uint64_t> free;  // offset -> bytes; neighbours never touch
    std::map<std::uint64_t, std::uint64_t> used;
    std::uint64_t fresh = 0;  // from here on nothing was ever given out: still zero
  };

  // Pages of an area, from one offset to another.
  struct Pages {
    std::size_t area = 0;
    std::uint64_t from = 0, to = 0;
  };

  static std::byte* take(Area& area, std::uint64_t bytes, bool zeroed);
  std::vector<Pages> pages_of(std::span<const std::span<std::byte>> pieces) const;
  const Area* area_of(const std::byte* memory) const;

  const std::function<Result<Segment>(std::uint64_t)> grow_;
  std::mutex grow_mutex_;  // before mutex_
  mutable std::mutex mutex_;
  std::vector<Area> areas_;
};

}  // namespace tensorlane::client
