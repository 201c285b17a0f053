// What the lane's loop asks the kernel for.
#pragma once

#include <time.h>

#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::lane {

inline std::int64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// The time of everything that a lane does: monotonic.
inline Time clock_now() {
  return Time(clock_ns(CLOCK_MONOTONIC));
}

// The calling thread's.
inline std::uint64_t thread_cpu_ns() {
  return static_cast<std::uint64_t>(clock_ns(CLOCK_THREAD_CPUTIME_ID));
}

}  // namespace tensorlane::lane
