// Counts calls of operator new, and their bytes, in a program that is linked with it.
#pragma once

#include <cstdint>

namespace tensorlane::counting {

enum class CountedThreads : std::uint8_t {
  kNone,
  kAll,
  kLanes,  // named "lane", "lane1", ...
};

// From now on. None are counted at first.
void count_allocations(CountedThreads threads);
std::uint64_t allocations();
// Of all of them together, whether freed since or not.
std::uint64_t allocated_bytes();

}  // namespace tensorlane::counting
