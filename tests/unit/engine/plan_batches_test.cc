// Which allreduces a leader puts into batches, and when a batch begins on a host.
#include "daemon/engine/batching/plan_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/engine/batching/batch_gate.h"

namespace tensorlane::engine {
namespace {

using protocol::Plan;
using protocol::PlanTensor;
using testing::ElementsAre;
using testing::HasSubstr;

PlanTensor small(std::uint64_t elements, float urgency = 0.5F, Dtype dtype = Dtype::kFloat32) {
  PlanTensor t;
  t.operation = Operation::kAllreduce;
  t.dtype = dtype;
  t.elements = elements;
  t.urgency = urgency;
  t.slice_elements = 4096;
  return t;
}

Status check_added(const Plan& plan, std::uint32_t first) {
  return check_batches(plan, {first, static_cast<std::uint32_t>(plan.tensors.size()) - first});
}

// A registration by which a plan grows from nothing, with its batches.
Plan batched(std::vector<PlanTensor> tensors, Bytes most, std::vector<std::uint8_t> asked = {}) {
  asked.resize(tensors.size());
  append_batches(&tensors, asked, most, [](PlanTensor& batch, std::size_t) { batch.slice_elements = 1024; });
  Plan plan{.version = 1, .tensors = std::move(tensors)};
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) plan.tensors[i].id = TensorId(i);
  const Status status = check_added(plan, 0);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return plan;
}

// The batch of every tensor, "-" for none.
std::string batches_of(const Plan& plan) {
  std::string text;
  for (const PlanTensor& t : plan.tensors) text += t.in_batch() ? static_cast<char>('0' + t.batch) : '-';
  return text;
}

TEST(AppendBatches, JoinsNeighboursInTheOrderOfUrgency) {
  const Plan plan = batched({small(10, 0.1F), small(20, 0.9F), small(30, 0.5F), small(40, 0.7F)}, Bytes(240));
  EXPECT_EQ(batches_of(plan), "5454--");  // 20 and 40 elements, then 30 and 10
  const PlanTensor& first = plan.tensors[4];
  EXPECT_EQ(first.members, 2U);
  EXPECT_EQ(first.elements, 60U);
  EXPECT_EQ(first.urgency, 0.9F);
  EXPECT_EQ(first.slice_elements, 1024U);  // what the planner says
  EXPECT_EQ(plan.tensors[1].batch_offset, 0U);
  EXPECT_EQ(plan.tensors[3].batch_offset, 20U);
  EXPECT_EQ(plan.tensors[3].operation_id(), TensorId(4));
  EXPECT_EQ(plan.tensors[4].operation_id(), TensorId(4));
}

TEST(AppendBatches, LeavesAloneWhatIsLargeOrFindsNoNeighbour) {
  const Plan plan = batched({small(100), small(26), small(100), small(5, 0.5F, Dtype::kInt32)}, Bytes(400));
  EXPECT_EQ(batches_of(plan), "----");
  EXPECT_EQ(batches_of(batched({small(1), small(1)}, Bytes(0))), "--");
}

TEST(AppendBatches, JoinsOneKindOnly) {
  std::vector<PlanTensor> tensors(12, small(8));
  tensors[2].dtype = tensors[3].dtype = Dtype::kFloat64;
  tensors[4].reduce = tensors[5].reduce = ReduceOp::kMax;
  tensors[6].cls = tensors[7].cls = ClassId(1);
  tensors[8].fp32_contributions = tensors[9].fp32_contributions = true;
  std::vector<std::uint8_t> asked(tensors.size());
  asked[10] = asked[11] = 2;
  PlanTensor other = small(8);
  other.operation = Operation::kBroadcast;
  tensors.push_back(other);
  asked.push_back(0);
  const Plan plan = batched(tensors, kib(1), asked);
  EXPECT_EQ(batches_of(plan), "==>>??@@AABB-------") << "pairs, from tensor 13 on";
}

TEST(AppendBatches, MakesFewOperationsOfManySmallTensors) {
  const Plan plan = batched(std::vector<PlanTensor>(200, small(256)), kib(64));
  EXPECT_EQ(plan.tensors.size(), 204U);  // of 64, 64, 64 and 8 members
}

TEST(CheckBatches, RefusesWhatDoesNotFit) {
  const Plan good = batched({small(10), small(20), small(30)}, kib(1));
  const auto refused = [&](auto change, std::size_t first = 0) {
    Plan plan = good;
    change(plan.tensors);
    return check_added(plan, first).to_string();
  };
  using Tensors = std::vector<PlanTensor>&;
  EXPECT_THAT(refused([](Tensors t) { t[1].batch = 2; }), HasSubstr("is no batch of this plan"));
  EXPECT_THAT(refused([](Tensors t) { t[0].batch = t[1].batch = t[2].batch = 99; }),
              HasSubstr("is no batch of this plan"));
  EXPECT_THAT(refused([](Tensors t) { t[1].batch_offset = 11; }), HasSubstr("not behind the one before"));
  EXPECT_THAT(refused([](Tensors t) { t[2].elements = ~std::uint64_t{0}; }), HasSubstr("not behind the one before"));
  EXPECT_THAT(refused([](Tensors t) { t[1].dtype = Dtype::kInt32; }), HasSubstr("of another kind"));
  EXPECT_THAT(refused([](Tensors t) { t[3].group = 7; }), HasSubstr("of another kind"));
  EXPECT_THAT(refused([](Tensors t) { t[3].elements = 61; }), HasSubstr("3 members with 60 elements"));
  EXPECT_THAT(refused([](Tensors t) { t[3].members = 2; }), HasSubstr("in a batch of 2 with 60"));
  EXPECT_THAT(refused([](Tensors t) { t[2].batch = protocol::kNoBatch; }), HasSubstr("2 members with 30 elements"));
  EXPECT_THAT(refused([](Tensors t) { t[0].members = 1; }), HasSubstr("1 batches without members"));
  EXPECT_THAT(refused([](Tensors t) { t[3].batch = 3; }), HasSubstr("is no batch of this plan"));
}

TEST(PlanHash, CoversBatches) {
  const Plan plan = batched({small(10), small(20)}, kib(1));
  for (const auto& change :
       {+[](Plan& p) { p.tensors[0].batch = protocol::kNoBatch; }, +[](Plan& p) { p.tensors[1].batch_offset = 11; },
        +[](Plan& p) { p.tensors[2].members = 3; }}) {
    Plan other = plan;
    change(other);
    EXPECT_NE(other.hash(), plan.hash());
  }
}

TEST(BatchGate, BeginsWhenAllRanksHaveSubmittedAllMembers) {
  const Plan plan = batched({small(10), small(20), small(5000)}, kib(1));
  BatchGate gate(2);
  gate.grow(plan);
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(gate.submitted(0, TensorId(1)).of_rank);
    EXPECT_FALSE(gate.submitted(1, TensorId(0)).of_rank);
    BatchGate::Step step = gate.submitted(0, TensorId(0));
    EXPECT_TRUE(step.of_rank);
    EXPECT_FALSE(step.of_host);
    step = gate.submitted(1, TensorId(1));
    EXPECT_TRUE(step.of_rank);
    EXPECT_TRUE(step.of_host);
    gate.completed(TensorId(3));
  }
}

// A peer may speak of it before the plan is whole here.
TEST(BatchGate, HasNoMembersOfWhatItDoesNotKnow) {
  BatchGate gate(1);
  EXPECT_TRUE(gate.members(TensorId(0)).empty());
  gate.grow(batched({small(10), small(20), small(5000)}, kib(1)));
  EXPECT_EQ(gate.members(TensorId(3)).size(), 2U);
  EXPECT_TRUE(gate.members(TensorId(2)).empty()) << "a tensor that travels alone";
  EXPECT_TRUE(gate.members(TensorId(4)).empty());
}

TEST(BatchGate, KnowsMembersByPlaceAlsoWhenThePlanGrows) {
  Plan plan = batched({small(10, 0.1F), small(20, 0.9F)}, kib(1));
  BatchGate gate(1);
  gate.grow(plan);
  EXPECT_FALSE(gate.submitted(0, TensorId(0)).of_host);
  for (PlanTensor t : batched({small(30), small(40)}, kib(1)).tensors) {
    t.id = TensorId(t.id.value + 3);
    if (t.in_batch()) t.batch += 3;
    plan.tensors.push_back(t);
  }
  ASSERT_TRUE(check_added(plan, 3).ok());
  gate.grow(plan);
  std::vector<std::uint32_t> ids;
  for (const auto& member : gate.members(TensorId(2))) ids.push_back(member.tensor.value);
  for (const auto& member : gate.members(TensorId(5))) ids.push_back(member.tensor.value);
  EXPECT_THAT(ids, ElementsAre(1, 0, 3, 4));
  EXPECT_EQ(gate.members(TensorId(2))[1].offset, 20U);
  EXPECT_TRUE(gate.submitted(0, TensorId(1)).of_host);  // what was submitted before the plan grew counts
}

TEST(BatchGate, ABatchInThePlaceOfAnotherHasItsOwnMembers) {
  Plan plan = batched({small(10), small(20), small(5000)}, kib(1));
  BatchGate gate(2);
  gate.grow(plan);
  ASSERT_EQ(gate.members(TensorId(3)).size(), 2U);
  gate.vacate({0, 4});
  plan.vacate({0, 4});
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(gate.members(TensorId(i)).empty()) << i;
  const Plan other = batched({small(5), small(6), small(7)}, kib(1));
  ASSERT_EQ(other.tensors.size(), 4U);
  plan.place({0, 4}, other.tensors);
  gate.grow(plan, {0, 4}, 2);
  ASSERT_EQ(gate.members(TensorId(3)).size(), 3U);
  EXPECT_EQ(gate.members(TensorId(3))[2].offset, 11U);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    EXPECT_FALSE(gate.submitted(0, TensorId(tensor)).of_host);
    EXPECT_EQ(gate.submitted(1, TensorId(tensor)).of_host, tensor == 2);
  }
}

}  // namespace
}  // namespace tensorlane::engine
