#include "daemon/control/registration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace tensorlane::control {
namespace {

using protocol::TensorBody;

TensorBody tensor(const std::string& name, std::uint64_t elements = 8) {
  TensorBody body;
  std::memcpy(body.name, name.data(), name.size());
  body.elements = elements;
  body.positions = 10;
  return body;
}

std::string check(const TensorBody& body) {
  return check_group("j", "g", {3, {body}}, 4).to_string();
}

std::string refused(const std::string& what) {
  return "rank 3: " + what + ": group 'g' of job 'j': correct what the rank registers";
}

TEST(CheckGroup, accepts_what_can_be_registered) {
  EXPECT_EQ(check(tensor("a")), "ok");
  EXPECT_EQ(check(tensor("a", protocol::kMaxElements)), "ok");
  EXPECT_EQ(check(tensor(std::string(protocol::kMaxName, 'n'))), "ok");
}

TEST(CheckGroup, refuses_what_cannot) {
  EXPECT_EQ(check(tensor("a", 0)), refused("tensor 'a' has 0 elements, not between 1 and 4294967296"));
  EXPECT_EQ(check(tensor("a", 1ull << 33)),
            refused("tensor 'a' has 8589934592 elements, not between 1 and 4294967296"));
  EXPECT_EQ(check(tensor("")), refused("a tensor has no name"));
  TensorBody body = tensor("a");
  body.dtype = static_cast<Dtype>(9);
  EXPECT_EQ(check(body), refused("tensor 'a' has an unknown dtype"));
  body = tensor("a");
  body.operation = static_cast<Operation>(11);
  EXPECT_EQ(check(body), refused("tensor 'a' has an unknown operation"));
  body = tensor("a");
  body.reduce = static_cast<ReduceOp>(9);
  EXPECT_EQ(check(body), refused("tensor 'a' has an unknown reduction"));
  body.dtype = Dtype::kInt64;
  body.reduce = ReduceOp::kAverage;
  EXPECT_EQ(check(body), refused("tensor 'a' is an average of int64"));
  body.operation = Operation::kBroadcast;  // which reduces nothing
  EXPECT_EQ(check(body), "ok");
  body = tensor("a");
  body.operation = Operation::kBroadcast;
  body.root = 4;
  EXPECT_EQ(check(body), refused("tensor 'a' has root 4 in a world of 4 ranks"));
  body = tensor("a", 10);
  body.operation = Operation::kAllgather;
  EXPECT_EQ(check(body), refused("tensor 'a' has 10 elements, which 4 ranks do not divide"));
  body.operation = Operation::kGather;
  EXPECT_EQ(check(body), refused("tensor 'a' has 10 elements, not a multiple of 4"));
  body.elements = 12;
  EXPECT_EQ(check(body), "ok");
  body.operation = Operation::kAlltoall;
  EXPECT_EQ(check(body), refused("tensor 'a' has 12 elements, not a multiple of 8"));
  body.elements = 10;
  body.operation = Operation::kReduceScatter;
  EXPECT_EQ(check(body), "ok");
  body.row = 4;
  EXPECT_EQ(check(body), refused("tensor 'a' has 10 elements in rows of 4"));
  body = tensor("a");
  body.row = 2;
  EXPECT_EQ(check(body), refused("tensor 'a' has 8 elements in rows of 2"));
  body = tensor("a");
  body.operation = Operation::kPush;
  EXPECT_EQ(check(body), "ok");
  body.root = 4;
  EXPECT_EQ(check(body), refused("tensor 'a' has root 4 in a world of 4 ranks"));
  body = tensor("a");
  body.explicit_urgency = 1;
  body.urgency = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(check(body), refused("tensor 'a' has urgency nan, not between 0 and 1"));
  body = tensor("a");
  body.pattern = protocol::kAutomaticPattern;
  EXPECT_EQ(check(body), "ok");
  body.pattern = 1 + static_cast<std::uint8_t>(protocol::Pattern::kWholeServer);
  EXPECT_EQ(check(body), refused("tensor 'a' asks for pattern 5, which is none"));
  body.pattern = protocol::kAutomaticPattern;
  body.operation = Operation::kPull;
  EXPECT_EQ(check(body),
            refused("tensor 'a' asks for a pattern, but a push and its pull are cut in one way, the daemon's"));
  body = tensor("a");
  body.position = 10;
  EXPECT_EQ(check(body), refused("tensor 'a' has position 10 of 10"));
  EXPECT_EQ(check_group("j", "g", {3, {}}, 4).to_string(), refused("the group has no tensors"));
  EXPECT_EQ(check_group("j", "g", {3, {tensor("a"), tensor("a")}}, 4).to_string(), refused("tensor 'a' comes twice"));
  EXPECT_FALSE(check_group("j", "", {3, {tensor("a")}}, 4).ok());
  EXPECT_FALSE(check_group("j", std::string(256, 'g'), {3, {tensor("a")}}, 4).ok());
}

TEST(CompareGroups, order_does_not_matter_and_what_an_operation_ignores_may_differ) {
  TensorBody a = tensor("a"), b = tensor("b"), other_a = a;
  other_a.root = 3;  // of an allreduce
  other_a.segment = 5;
  other_a.offset = 4096;
  other_a.urgency = 0.5f;  // without explicit_urgency
  EXPECT_TRUE(compare_groups("j", "g", {0, {a, b}}, {1, {b, other_a}}).ok());
  a.operation = other_a.operation = Operation::kBroadcast;
  a.root = other_a.root = 1;
  other_a.reduce = ReduceOp::kAverage;
  EXPECT_TRUE(compare_groups("j", "g", {0, {a}}, {1, {other_a}}).ok());
}

TEST(CompareGroups, the_first_difference_in_the_order_of_the_reference_is_named) {
  TensorBody b = tensor("b"), c = tensor("c");
  b.elements = 9;
  c.elements = 9;
  TensorBody ring = tensor("a"), automatic = tensor("a");
  ring.pattern = 1 + static_cast<std::uint8_t>(protocol::Pattern::kRing);
  automatic.pattern = protocol::kAutomaticPattern;
  EXPECT_EQ(compare_groups("j", "g", {0, {ring}}, {3, {automatic}}).what(),
            "tensor 'a' differs: rank 0 registers pattern ring, rank 3 pattern auto");
  TensorBody to_first = tensor("a"), to_last = tensor("a");
  to_first.operation = to_last.operation = Operation::kGather;
  to_last.root = 3;
  EXPECT_EQ(compare_groups("j", "g", {0, {to_first}}, {3, {to_last}}).what(),
            "tensor 'a' differs: rank 0 registers root 0, rank 3 root 3");
  EXPECT_EQ(compare_groups("j", "g", {0, {tensor("a"), tensor("b"), tensor("c")}}, {3, {c, b, tensor("a")}}).what(),
            "tensor 'b' differs: rank 0 registers float32[8], rank 3 float32[9]");
}

TEST(TensorsOnTheWire, come_back_as_they_went_without_their_place) {
  TensorBody body = tensor("a", protocol::kMaxElements);
  body.dtype = Dtype::kUint8;
  body.operation = Operation::kBroadcast;
  body.reduce = ReduceOp::kProduct;
  body.root = 3;
  body.position = 4;
  body.explicit_urgency = 1;
  body.urgency = 0.1f;
  body.pattern = protocol::kAutomaticPattern;
  body.offset = 64;
  const auto got = tensors_from_json(nlohmann::json::from_cbor(nlohmann::json::to_cbor(tensors_to_json({body}))));
  ASSERT_TRUE(got && got->size() == 1);
  EXPECT_TRUE(compare_groups("j", "g", {0, {body}}, {1, *got}).ok());
  EXPECT_EQ((*got)[0].reduce, ReduceOp::kProduct);
  EXPECT_EQ((*got)[0].offset, 0u);
}

TEST(TensorsOnTheWire, malformed_ones_do_not_pass) {
  auto array = tensors_to_json({tensor("a")});
  for (std::size_t i = 0; i < array[0].size(); ++i) {
    auto changed = array;
    changed[0][i] = nullptr;
    EXPECT_FALSE(tensors_from_json(changed)) << i;
    changed = array;
    changed[0].erase(i);
    EXPECT_FALSE(tensors_from_json(changed)) << i;
  }
  array[0][0] = std::string(300, 'x');
  EXPECT_FALSE(tensors_from_json(array));
  EXPECT_FALSE(tensors_from_json(nlohmann::json::array({1})));
}

TEST(PlanOnTheWire, has_the_same_hash_at_the_other_end) {
  protocol::Plan plan;
  plan.version = 3;
  for (std::uint32_t i = 0; i < 3; ++i) {
    protocol::PlanTensor t;
    t.id = TensorId(i);
    t.operation = Operation::kBroadcast;
    t.dtype = Dtype::kFloat16;
    t.pattern = protocol::Pattern::kParameterServer;
    t.cls = ClassId(1);
    t.urgency = 1.0f / 3.0f;
    t.elements = 1000 + i;
    t.slice_elements = 77;
    t.root = HostIndex(2);
    t.root_rank = Rank(5);
    t.fp32_contributions = true;
    t.batch = i < 2 ? 2 : protocol::kNoBatch;
    t.batch_offset = 1000 * i;
    t.members = i < 2 ? 0 : 2;
    t.name = fmt::format("t{}", i);
    plan.tensors.push_back(t);
  }
  const auto got =
      plan_tensors_from_json(nlohmann::json::from_cbor(nlohmann::json::to_cbor(plan_tensors_to_json(plan.tensors))));
  ASSERT_TRUE(got.has_value());
  const protocol::Plan other{.version = 3, .tensors = *got};
  EXPECT_EQ(other.hash(), plan.hash());
  EXPECT_EQ((*got)[1].root_rank, Rank(5));
  auto broken = plan_tensors_to_json(plan.tensors);
  broken[1].erase(4);
  EXPECT_FALSE(plan_tensors_from_json(broken));
}

}  // namespace
}  // namespace tensorlane::control
