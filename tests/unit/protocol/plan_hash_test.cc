#include "common/protocol/plan_hash.h"

#include <gtest/gtest.h>

namespace tensorlane::protocol {
namespace {

TEST(PlanHash, is_that_of_the_plan_whenever_it_is_asked_for) {
  Plan plan;
  plan.rails = 2;
  plan.rank_hosts = {HostIndex(0), HostIndex(1)};
  PlanHash hash(plan);
  std::uint64_t last = hash.value(plan);
  for (std::uint32_t i = 0; i < 3; ++i) {
    PlanTensor tensor;
    tensor.id = TensorId(i);
    tensor.name = "t";
    hash.add(tensor);
    plan.tensors.push_back(tensor);
    plan.version = i + 1;
    EXPECT_EQ(hash.value(plan), plan.hash());
    EXPECT_NE(plan.hash(), last);
    last = plan.hash();
  }
  const auto changed = [&](auto&& change) {
    Plan other = plan;
    change(other);
    return other.hash() != plan.hash();
  };
  EXPECT_TRUE(changed([](Plan& p) { ++p.version; }));
  EXPECT_TRUE(changed([](Plan& p) { ++p.rails; }));
  EXPECT_TRUE(changed([](Plan& p) { ++p.concurrent; }));
  EXPECT_TRUE(changed([](Plan& p) { p.ordering = Ordering::kFunnel; }));
  EXPECT_TRUE(changed([](Plan& p) { p.rank_hosts[1] = HostIndex(0); }));
  EXPECT_TRUE(changed([](Plan& p) { p.tensors[1].name = "u"; }));
}

}  // namespace
}  // namespace tensorlane::protocol
