#include "daemon/transport/dpdk/port/idle_policy.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::dpdk {

IdlePolicy::IdlePolicy(const IdleLimits& limits) : limits_(limits), next_(limits.first) {
  TL_ASSERT(limits_.spin.value >= 0 && limits_.first.value > 0 && limits_.longest >= limits_.first);
}

Duration IdlePolicy::rest(Time now, std::size_t packets) {
  if (packets > 0 || !last_packet_) last_packet_ = now;
  const Duration silence = now - *last_packet_;
  if (packets > 0) next_ = limits_.first;
  if (packets > 0 || silence < limits_.spin) return Duration{};
  const Duration rest = next_;
  next_ = std::min(next_ * 2, limits_.longest);
  return rest;
}

}  // namespace tensorlane::dpdk
