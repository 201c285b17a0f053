// What the scripts of hosts set, in the units of the tools that set it.
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::switches::host {

// The percentage of a port's speed as mlnx_qos takes it, in whole Gb/s, rounded up, so that a class gets at least its
// share; and as dcb takes it, in whole Mb/s.
constexpr BitsPerSecond whole_gbps(BitsPerSecond speed, unsigned percent) {
  constexpr std::uint64_t kGigabit = 1'000'000'000;
  return BitsPerSecond((speed.value / 100 * percent + kGigabit - 1) / kGigabit * kGigabit);
}
constexpr BitsPerSecond whole_mbps(BitsPerSecond speed, unsigned percent) {
  constexpr std::uint64_t kMegabit = 1'000'000;
  const std::uint64_t whole = speed.value / 100 * percent / kMegabit * kMegabit;
  return BitsPerSecond(whole == 0 ? kMegabit : whole);
}

// A cable's length as mlnx_qos takes it, 1 at the least.
inline std::uint64_t whole_metres(double metres) {
  return metres < 1 ? 1 : static_cast<std::uint64_t>(metres + 0.999);
}

}  // namespace tensorlane::switches::host
