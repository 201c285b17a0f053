// Negotiation: its parts, and an engine that negotiates with peers which the test plays.
#include "daemon/engine/ordering/negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_engine.h"

namespace tensorlane::engine {
namespace {

using protocol::Ordering;
using testing::FrameHeader;
using testing::FrameType;
using testing::header;
using testing::OneEngine;

constexpr HostIndex kFirst{1}, kSecond{2};

TEST(Negotiation, BeginsWithTheLastHost) {
  Negotiation leader(Negotiation::kLeader, 3);
  leader.grow(100);
  TensorWord agreed;
  EXPECT_EQ(leader.offer(TensorId(70)).bits, 0u);
  EXPECT_TRUE(leader.offered(kFirst, {1, 0b1100'0000}, &agreed));  // 70 and 71
  EXPECT_EQ(agreed.bits, 0u);
  EXPECT_FALSE(leader.due(kFirst));
  EXPECT_TRUE(leader.offered(kSecond, {1, 0b100'0000}, &agreed));
  EXPECT_EQ(agreed.index, 1u);
  EXPECT_EQ(agreed.bits, 0b100'0000u);
  for (HostIndex host : {kFirst, kSecond}) {
    ASSERT_TRUE(leader.due(host));
    EXPECT_EQ(leader.take_due(host).bits, 0b100'0000u);
    EXPECT_FALSE(leader.due(host));
  }
  // 71 is still offered by one; 70 may come again.
  EXPECT_FALSE(leader.offered(kFirst, {1, 0b1000'0000}, &agreed));
  EXPECT_TRUE(leader.offered(kFirst, {1, 0b100'0000}, &agreed));
}

// What becomes ready while a word waits goes with it: one frame for 64 tensors.
TEST(Negotiation, OffersAreAddedUpWhileTheyWait) {
  Negotiation host(kFirst, 2);
  host.grow(130);
  for (std::uint32_t t = 0; t < 130; ++t) EXPECT_EQ(host.offer(TensorId(t)).bits, 0u);
  EXPECT_EQ(host.take_due(Negotiation::kLeader).bits, ~std::uint64_t{0});
  EXPECT_EQ(host.take_due(Negotiation::kLeader).bits, ~std::uint64_t{0});
  const TensorWord last = host.take_due(Negotiation::kLeader);
  EXPECT_EQ(last.index, 2u);
  EXPECT_EQ(last.bits, 0b11u);
  EXPECT_FALSE(host.due(Negotiation::kLeader));
  EXPECT_TRUE(host.agreed({0, 0b101}));
  EXPECT_FALSE(host.agreed({0, 0b1}));  // no longer offered
}

TEST(Negotiation, KnowsTheTensorsOfThePlan) {
  Negotiation host(kFirst, 2);
  host.grow(66);
  EXPECT_TRUE(host.knows({0, ~std::uint64_t{0}}));
  EXPECT_TRUE(host.knows({1, 0b11}));
  EXPECT_FALSE(host.knows({1, 0b100}));
  EXPECT_FALSE(host.knows({2, 1}));
  EXPECT_FALSE(host.knows({0, 0}));
}

protocol::Plan negotiated_plan() {
  protocol::Plan plan = testing::plan_of(testing::allreduce(Pattern::kRing, Dtype::kFloat32, 100, 100));
  plan.ordering = Ordering::kNegotiated;
  return plan;
}

FrameHeader word(FrameType type, std::uint64_t bits, std::uint32_t index = 0) {
  FrameHeader h = header(type, 0, 0, index);
  h.offset = bits;
  return h;
}

TEST(NegotiatingEngine, LeaderSaysWhatAllHaveOffered) {
  OneEngine e(negotiated_plan(), {}, 3);
  EXPECT_TRUE(e.feed({.kind = Event::Kind::kOffer, .offer = {TensorId(0)}}).empty());
  EXPECT_EQ(e.frame(word(FrameType::kOffer, 1), 1), "");
  EXPECT_TRUE(e.pick(kControlClass, 1).empty());
  EXPECT_EQ(e.frame(word(FrameType::kOffer, 1), 1), "operation offered twice");
  EXPECT_EQ(e.frame(word(FrameType::kAgreed, 1), 1), "negotiation with a host that does not lead it");
  EXPECT_EQ(e.frame(word(FrameType::kOffer, 2), 1), "negotiation of tensors that are not in the plan");
  Event last{.kind = Event::Kind::kFrameArrived};
  last.frame = {HostIndex(2), word(FrameType::kOffer, 1)};
  const auto actions = e.feed(last);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Action::Kind::kAgreed);
  EXPECT_EQ(actions[0].agreed.bits, 1u);
  for (std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
    const auto sends = e.pick(kControlClass, peer);
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].header.type, FrameType::kAgreed);
    EXPECT_EQ(sends[0].header.offset, 1u);
    EXPECT_EQ(sends[0].eligible, Time(e.now().value - peer));  // since the step, before the picks
  }
}

TEST(NegotiatingEngine, OthersOfferAndAreTold) {
  OneEngine e(negotiated_plan(), {.self = HostIndex(1)}, 3);
  EXPECT_EQ(e.frame(word(FrameType::kAgreed, 1), 0), "agreement on an operation that was not offered");
  EXPECT_TRUE(e.feed({.kind = Event::Kind::kOffer, .offer = {TensorId(0)}}).empty());
  const auto sends = e.pick(kControlClass, 0);
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].header.type, FrameType::kOffer);
  EXPECT_FALSE(e->has_sends(e.now(), kControlClass));
  EXPECT_EQ(e.frame(word(FrameType::kAgreed, 1), 2), "agreement from a host that does not lead the job");
  Event agreed{.kind = Event::Kind::kFrameArrived};
  agreed.frame = {HostIndex(0), word(FrameType::kAgreed, 1)};
  const auto actions = e.feed(agreed);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].agreed.bits, 1u);
}

TEST(NegotiatingEngine, OnlyWhereThePlanSaysSo) {
  protocol::Plan plan = negotiated_plan();
  plan.ordering = Ordering::kTagged;
  OneEngine e(plan);
  EXPECT_EQ(e.frame(word(FrameType::kOffer, 1)), "negotiation in a job whose plan has none");
  EXPECT_EQ(e->apply_plan(negotiated_plan()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tensorlane::engine
