#include "tests/allocations/allocation_count.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

using tensorlane::counting::CountedThreads;

std::atomic<CountedThreads> counted_threads{CountedThreads::kNone};
std::atomic<std::uint64_t> counted{0}, counted_bytes{0};

// Asked once for each thread: the answer takes a system call.
bool on_a_lane() {
  thread_local const bool answer = [] {
    char name[16] = {};
    // Not "lane_bench", as the main thread is named.
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strncmp(name, "lane", 4) == 0 &&
           std::strspn(name + 4, "0123456789") == std::strlen(name + 4);
  }();
  return answer;
}

bool counts_here() {
  const CountedThreads threads = counted_threads.load(std::memory_order_relaxed);
  return threads == CountedThreads::kAll || (threads == CountedThreads::kLanes && on_a_lane());
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (counts_here()) {
    counted.fetch_add(1, std::memory_order_relaxed);
    counted_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}

namespace tensorlane::counting {

void count_allocations(CountedThreads threads) {
  counted_threads.store(threads);
}

std::uint64_t allocations() {
  return counted.load();
}

std::uint64_t allocated_bytes() {
  return counted_bytes.load();
}

}  // namespace tensorlane::counting
