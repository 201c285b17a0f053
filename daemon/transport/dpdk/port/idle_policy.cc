#include "daemon/transport/dpdk/port/idle_policy.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::dpdk {

IdlePolicy::IdlePolicy(const IdleLimits& limits) : limits_(limits), next_(limits.first) {
  TL_ASSERT(limits.spin.value >= 0 && limits.first.value > 0 && limits.longest >= limits.first);
}

Duration IdlePolicy::rest(Time began, Time ended, std::size_t packets) {
  if (!started_) {
    started_ = true;
    first_turn_ = last_packet_ = began;
  }
  total_ = std::max(total_, ended - first_turn_);
  if (packets > 0) {
    busy_ += Duration(std::max<std::int64_t>((ended - began).value, 0));
    last_packet_ = ended;
    next_ = limits_.first;
    return Duration{};
  }
  if (ended - last_packet_ < limits_.spin) return Duration{};
  const Duration rest = next_;
  next_ = std::min(next_ * 2, limits_.longest);
  return rest;
}

double IdlePolicy::take_busy_share() {
  const Duration total = total_ - seen_total_, busy = busy_ - seen_busy_;
  seen_total_ = total_;
  seen_busy_ = busy_;
  return total.value > 0 ? to_seconds(busy) / to_seconds(total) : 0;
}

}  // namespace tensorlane::dpdk
