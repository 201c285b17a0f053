#include "daemon/transport/dpdk/port/idle_policy.h"

#include <gtest/gtest.h>

namespace tensorlane::dpdk {
namespace {

const IdleLimits kLimits{.spin = microseconds(20), .first = microseconds(5), .longest = microseconds(80)};

TEST(IdlePolicy, SpinsThenRestsEverLonger) {
  IdlePolicy policy(kLimits);
  Time now(1000);
  EXPECT_EQ(policy.rest(now, 1), Duration{});
  for (int i = 1; i < 20; ++i) EXPECT_EQ(policy.rest(now + microseconds(i), 0), Duration{}) << i;
  now = now + microseconds(20);
  for (const std::int64_t rest : {5, 10, 20, 40, 80, 80, 80}) {
    EXPECT_EQ(policy.rest(now, 0), microseconds(rest));
    now = now + microseconds(rest);
  }
  EXPECT_TRUE(policy.may_block());
  EXPECT_EQ(policy.rest(now, 3), Duration{});
  EXPECT_FALSE(policy.may_block());
  EXPECT_EQ(policy.rest(now + microseconds(1), 0), Duration{});
}

}  // namespace
}  // namespace tensorlane::dpdk
