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
  buried_.push_back({memory, bytes});
  bytes_buried_ += bytes;
  while (bytes_buried_ > kMaxBuried) free_oldest();
}

void Memory::free_oldest() {
  const Buried oldest = buried_.front();
  buried_.pop_front();
  bytes_buried_ -= oldest.bytes;
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(oldest.memory, oldest.bytes);
  std::free(oldest.memory);
}

void Memory::clear() {
  for (const auto& [start, range] : ranges_) {
    range->alive = false;
    const bool ours = range->kind == MemoryKind::kAllocated || range->kind == MemoryKind::kHostAllocated;
    if (ours) std::free(reinterpret_cast<void*>(start));
  }
  ranges_.clear();
  while (!buried_.empty()) free_oldest();
}

}  // namespace tensorlane::fake_cuda
