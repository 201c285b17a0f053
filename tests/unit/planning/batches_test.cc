// What a leader plans for the batches of a registration.
#include "daemon/planning/batches.h"

#include <gtest/gtest.h>

#include "daemon/planning/pattern_choices.h"

namespace tensorlane::planning {
namespace {

protocol::TensorBody body(std::uint64_t elements, float urgency) {
  protocol::TensorBody tensor{};
  tensor.dtype = Dtype::kFloat32;
  tensor.operation = Operation::kAllreduce;
  tensor.elements = elements;
  tensor.explicit_urgency = 1;
  tensor.urgency = urgency;
  return tensor;
}

TEST(AppendBatches, PlansABatchAsATensorOfItsLength) {
  const std::vector<protocol::TensorBody> registered{body(100, 0.2F), body(50, 0.6F), body(5000, 1)};
  const auto plan = [](const protocol::TensorBody& tensor) {
    protocol::PlanTensor planned;
    planned.elements = tensor.elements;
    planned.urgency = tensor.urgency;
    planned.pattern = tensor.elements > 100 ? protocol::Pattern::kHalvingDoubling : protocol::Pattern::kTree;
    planned.cls = ClassId(tensor.urgency > 0.9F ? 0 : 1);
    planned.slice_elements = static_cast<std::uint32_t>(tensor.elements);
    return planned;
  };
  std::vector<protocol::PlanTensor> tensors;
  for (const auto& tensor : registered) tensors.push_back(plan(tensor));
  append_batches(registered, kib(1), plan, &tensors);
  ASSERT_EQ(tensors.size(), 4u);
  const protocol::PlanTensor& batch = tensors.back();
  EXPECT_EQ(batch.members, 2u);
  EXPECT_EQ(batch.elements, 150u);
  EXPECT_EQ(batch.urgency, 0.6F);
  EXPECT_EQ(batch.pattern, protocol::Pattern::kHalvingDoubling);
  EXPECT_EQ(batch.cls, ClassId(1));
  EXPECT_EQ(batch.slice_elements, 150u);
}

TEST(AppendBatches, PatternsThatAreAskedForAreKeptApart) {
  std::vector<protocol::TensorBody> registered{body(10, 1), body(10, 1), body(10, 1)};
  registered[1].pattern = protocol::kAutomaticPattern;
  const auto plan = [](const protocol::TensorBody& tensor) {
    protocol::PlanTensor planned;
    planned.elements = tensor.elements;
    return planned;
  };
  std::vector<protocol::PlanTensor> tensors;
  for (const auto& tensor : registered) tensors.push_back(plan(tensor));
  append_batches(registered, kib(1), plan, &tensors);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_FALSE(tensors[1].in_batch());
}

// 1.5 overheads' worth of bytes: 50 us at 10 Gbit/s are 62,500.
TEST(PatternChoices, KnowTheBatchingThresholdOfTheirModel) {
  config::DaemonConfig config;
  config.network_model.bandwidth = BitsPerSecond(10'000'000'000);
  EXPECT_NEAR(static_cast<double>(PatternChoices(config).batching_threshold().value), 93'750, 1);
  config.network_model.latency = microseconds(10);
  EXPECT_NEAR(static_cast<double>(PatternChoices(config).batching_threshold().value), 18'750, 1);
}

}  // namespace
}  // namespace tensorlane::planning
