// Counts calls of operator new on the lanes' threads, in a program that is linked with it.
#pragma once

#include <cstdint>

namespace tensorlane::bench {

// Starts and stops counting. Off at first.
void count_allocations(bool on);
std::uint64_t allocations();

}  // namespace tensorlane::bench
