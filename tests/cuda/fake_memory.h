// The memory that the fake driver knows: that of devices, and pinned memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

namespace tensorlane::fake_cuda {

enum class MemoryKind { kAllocated, kAdopted, kRegistered, kHostAllocated };

struct Range {
  MemoryKind kind;
  std::uintptr_t start;
  std::size_t bytes;
  int device;  // for pinned memory: the one whose context was current
  bool alive = true;
  bool portable = true;  // of pinned memory: so for the other devices, too
  int queued = 0;        // operations that use it and have not ended
  int running = 0;       // operations that access it at this moment

  bool on_device() const { return kind == MemoryKind::kAllocated || kind == MemoryKind::kAdopted; }
};

// The ranges do not overlap. One thread at a time.
class Memory {
 public:
  // Null: it would overlap a range, or has no bytes.
  std::shared_ptr<Range> add(MemoryKind kind, const void* start, std::size_t bytes, int device);
  // The living range that holds the byte at `address`. Null: none does.
  std::shared_ptr<Range> at(std::uintptr_t address) const;
  // The living range that begins at `address`. Null: none does.
  std::shared_ptr<Range> starting_at(const void* address) const;
  // True when a living range has one of the bytes.
  bool overlaps(std::uintptr_t start, std::size_t bytes) const;
  // The range is dead afterwards; its memory stays as it is.
  void remove(const std::shared_ptr<Range>& range);
  std::size_t count(MemoryKind kind) const;

  // New memory, filled with a pattern. Null: there is none.
  static void* allocate(std::size_t bytes, std::size_t alignment);
  // Takes memory of allocate(): it is filled, hidden from the address sanitizer, and freed when enough other memory has
  // been buried after it, or with clear().
  void bury(void* memory, std::size_t bytes);

  // Removes all ranges, and frees what was allocated.
  void clear();

 private:
  struct Buried {
    void* memory;
    std::size_t bytes;
  };
  void free_oldest();

  std::map<std::uintptr_t, std::shared_ptr<Range>> ranges_;  // by start
  std::deque<Buried> buried_;
  std::size_t bytes_buried_ = 0;
};

}  // namespace tensorlane::fake_cuda
