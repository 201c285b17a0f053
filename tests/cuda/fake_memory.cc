#include "fake_memory.h"

#include <cstdlib>
#include <cstring>

// Of the address sanitizer's runtime; null where the program is built without it.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* memory, std::size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* memory, std::size_t bytes);
}

namespace tensorlane::fake_cuda {
namespace {

constexpr unsigned char kNew = 0xA5, kDead = 0xDD;
constexpr std::size_t kMaxBuried = std::size_t{64} << 20;

}  // namespace

std::shared_ptr<Range> Memory::add(MemoryKind kind, const void* start, std::size_t bytes, int device) {
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  if (bytes == 0 || overlaps(address, bytes)) return nullptr;
  auto range = std::make_shared<Range>(Range{kind, address, bytes, device});
  ranges_[address] = range;
  return range;
}

std::shared_ptr<Range> Memory::at(std::uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const auto& range = std::prev(after)->second;
  return address - range->start < range->bytes ? range : nullptr;
}

std::shared_ptr<Range> Memory::starting_at(const void* address) const {
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(address));
  return found == ranges_.end() ? nullptr : found->second;
}

bool Memory::overlaps(std::uintptr_t start, std::size_t bytes) const {
  if (at(start) != nullptr) return true;
  const auto next = ranges_.lower_bound(start);
  return next != ranges_.end() && next->first - start < bytes;
}

void Memory::remove(const std::shared_ptr<Range>& range) {
  range->alive = false;
  ranges_.erase(range->start);
}

std::size_t Memory::count(MemoryKind kind) const {
  std::size_t count = 0;
  for (const auto& [start, range] : ranges_) count += range->kind == kind ? 1 : 0;
  return count;
}

void* Memory::allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  std::memset(memory, kNew, bytes);
  return memory;
}

void Memory::bury(void* memory, std::size_t bytes) {
  std::memset(memory, kDead, bytes);
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(memory, bytes);
  bury(Buried{memory, bytes, false});
}

void Memory::bury(const Buried& buried) {
  buried_.push_back(buried);
  bytes_buried_ += buried.bytes;
  while (bytes_buried_ > kMaxBuried) free_oldest();
}

std::shared_ptr<Range> Memory::add_shared(MemoryKind kind, const SharedFile& file, std::size_t bytes, int device) {
  if (file.memory == nullptr) return nullptr;
  auto range = add(kind, file.memory, bytes, device);
  range->file = file;
  return range;
}

std::shared_ptr<Range> Memory::allocate_shared(std::size_t bytes, int device) {
  const SharedFile file = SharedFile::make(bytes);
  if (file.memory != nullptr) std::memset(file.memory, kNew, bytes);
  return add_shared(MemoryKind::kDriverAllocated, file, bytes, device);
}

std::shared_ptr<Range> Memory::import(const Ticket& ticket, int device) {
  return add_shared(MemoryKind::kImported, ticket.open(), ticket.bytes, device);
}

std::shared_ptr<Range> Memory::imported(const Ticket& ticket) const {
  for (const auto& [start, range] : ranges_) {
    if (range->kind == MemoryKind::kImported && range->file.inode == ticket.inode) return range;
  }
  return nullptr;
}

void Memory::bury_shared(Range& range) {
  if (range.kind == MemoryKind::kDriverAllocated) std::memset(range.file.memory, kDead, range.bytes);
  forbid(range.file.memory, range.bytes);
  close_file(range.file.descriptor);
  bury(Buried{range.file.memory, range.bytes, true});
}

void Memory::free_oldest() {
  const Buried oldest = buried_.front();
  buried_.pop_front();
  bytes_buried_ -= oldest.bytes;
  if (oldest.is_mapped) return unmap(oldest.memory, oldest.bytes);
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(oldest.memory, oldest.bytes);
  std::free(oldest.memory);
}

void Memory::clear() {
  for (const auto& [start, range] : ranges_) {
    range->alive = false;
    const bool ours = range->kind == MemoryKind::kAllocated || range->kind == MemoryKind::kHostAllocated;
    if (ours) std::free(reinterpret_cast<void*>(start));
    if (!range->is_shared()) continue;
    unmap(range->file.memory, range->bytes);
    close_file(range->file.descriptor);
  }
  ranges_.clear();
  while (!buried_.empty()) free_oldest();
}

}  // namespace tensorlane::fake_cuda
