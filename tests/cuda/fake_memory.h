// The memory that the fake driver knows: that of devices, and pinned memory of the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "fake_sharing.h"

namespace tensorlane::fake_cuda {

// Of devices: what a control has allocated, what belongs to the test, what cuMemAlloc has allocated, and what another
// process has. Of the host: what is pinned, and what is allocated so.
enum class MemoryKind { kAllocated, kAdopted, kDriverAllocated, kImported, kRegistered, kHostAllocated };

struct Range {
  MemoryKind kind;
  std::uintptr_t start;
  std::size_t bytes;
  int device;                    // for pinned memory: the one whose context was current
  std::uint64_t id = next_id();  // no other range ever has it
  bool alive = true;
  bool portable = true;  // of pinned memory: so for the other devices, too
  int queued = 0;        // operations that use it and have not ended
  int running = 0;       // operations that access it at this moment
  SharedFile file;       // of kDriverAllocated and kImported
  int opened = 1;        // of kImported: how often the program has opened it and not closed it

  bool on_device() const { return kind != MemoryKind::kRegistered && kind != MemoryKind::kHostAllocated; }
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  bool is_shared() const { return kind == MemoryKind::kDriverAllocated || kind == MemoryKind::kImported; }
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

  // New memory that other processes may import, filled with a pattern. Null: there is none.
  std::shared_ptr<Range> allocate_shared(std::size_t bytes, int device);
  // Memory of another process, which is not imported yet. Null: it is no more, or this process may not have it.
  std::shared_ptr<Range> import(const Ticket& ticket, int device);
  // The living range that was imported from there. Null: none was.
  std::shared_ptr<Range> imported(const Ticket& ticket) const;
  // Takes the memory of such a range, which is dead. An access to it ends the process until its addresses are given
  // back, as those of bury() are. What this process has allocated is filled first, for those that have imported it.
  void bury_shared(Range& range);

  // Removes all ranges, and frees what was allocated.
  void clear();

 private:
  struct Buried {
    void* memory;
    std::size_t bytes;
    bool is_mapped;
  };
  std::shared_ptr<Range> add_shared(MemoryKind kind, const SharedFile& file, std::size_t bytes, int device);
  void bury(const Buried& buried);
  void free_oldest();

  std::map<std::uintptr_t, std::shared_ptr<Range>> ranges_;  // by start
  std::deque<Buried> buried_;
  std::size_t bytes_buried_ = 0;
};

}  // namespace tensorlane::fake_cuda
