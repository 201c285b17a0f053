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

TEST(PlanHash, is_that_of_the_plan_when_tensors_have_come_to_be_in_places_that_others_left) {
  const auto tensor_at = [](std::uint32_t place, const char* name) {
    PlanTensor tensor;
    tensor.id = TensorId(place);
    tensor.name = name;
    return tensor;
  };
  Plan plan;
  plan.place({0, 3}, {tensor_at(0, "a"), tensor_at(1, "b"), tensor_at(2, "c")});
  PlanHash hash(plan);
  for (const PlanTensor& tensor : plan.tensors) hash.add(tensor);
  const std::uint64_t before = plan.hash();
  hash.remove(plan.tensors[1]);
  plan.vacate({1, 1});
  EXPECT_EQ(hash.value(plan), plan.hash());
  EXPECT_NE(plan.hash(), before);
  hash.add(tensor_at(1, "d"));
  plan.place({1, 1}, {tensor_at(1, "d")});
  EXPECT_EQ(hash.value(plan), plan.hash());
  EXPECT_NE(plan.hash(), before) << "another tensor is there";
}

}  // namespace
}  // namespace tensorlane::protocol
