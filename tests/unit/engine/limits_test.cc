// What a job may send in its urgent classes, and where the rest goes (law 11).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ClassId kUrgent{0}, kMiddle{1}, kBulk{2};
constexpr std::uint64_t kSlice = 128;  // bytes

// Broadcasts from host 0, of two slices each.
Plan plan_of(std::initializer_list<std::pair<float, ClassId>> tensors) {
  Plan plan;
  for (const auto& [urgency, cls] : tensors) {
    PlanTensor t{.operation = Operation::kBroadcast, .pattern = kServer, .cls = cls, .urgency = urgency};
    t.elements = 64;
    t.slice_elements = 32;
    add(&plan, t);
  }
  return plan;
}

// Host 0 is the root of broadcasts to hosts 1 and 2; 1000 bytes a second.
class Limits : public ::testing::Test {
 protected:
  explicit Limits(std::initializer_list<std::pair<float, ClassId>> tensors = {{0.9F, kUrgent}, {0.1F, kBulk}}) {
    EngineConfig config = no_credit();
    config.classes = 3;
    config.hosts = config.world_size = 3;
    config.limits[0] = {BitsPerSecond(8000), Bytes(kSlice + 1)};
    start(plan_of(tensors), config);
  }
  void start(const Plan& plan, const EngineConfig& config) {
    plan_ = plan;
    engine_ = std::make_unique<Engine>(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    ASSERT_TRUE(engine_->apply_plan(plan).ok());
    for (const PlanTensor& t : plan.tensors) {
      Event e{.kind = Event::Kind::kTensorReady};
      e.tensor_ready = {t.id, Sequence(1), {1 + t.id.value, 0, 0, t.elements * dtype_size(t.dtype)}, {}};
      step(e);
      for (std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
        Event ready{.kind = Event::Kind::kFrameArrived};
        ready.frame = {HostIndex(peer),
                       {.type = FrameType::kReady, .grant = 9u + peer, .tensor = t.id, .sequence = Sequence(1)}};
        step(ready);
      }
    }
  }
  void step(const Event& event) {
    ASSERT_EQ(engine_->step(Time(0), {&event, 1}, actions_), 1u);
    ASSERT_TRUE(actions_.empty());
  }
  // Tensors of the slices that go to host 1.
  std::vector<std::uint32_t> pick(Time now, ClassId cls, std::size_t most = 64, std::uint16_t peer = 1) {
    std::vector<Send> sends(most);
    sends.resize(engine_->pick(now, {HostIndex(peer), cls}, kMuch, sends));
    std::vector<std::uint32_t> tensors;
    for (const Send& s : sends) {
      EXPECT_EQ(s.header.cls, cls);
      tensors.push_back(s.header.tensor.value);
    }
    return tensors;
  }
  bool has(Time now, ClassId cls, std::uint16_t peer = 1) {
    HostIndex next;
    const bool flow = engine_->has_sends(now, Flow{HostIndex(peer), cls});
    // Round from one host before it, the peer comes first.
    const bool found = engine_->next_flow(now, cls, HostIndex(static_cast<std::uint16_t>(peer - 1)), &next);
    EXPECT_EQ(flow, found && next == HostIndex(peer));
    EXPECT_TRUE(!flow || engine_->has_sends(now, cls));
    return flow;
  }

  Plan plan_;
  std::unique_ptr<Engine> engine_;
  ActionRing actions_{16};
};

constexpr Time at(double seconds) {
  return Time(static_cast<std::int64_t>(seconds * 1e9));
}

TEST_F(Limits, WhatExceedsTheBucketTravelsInTheNextClassAndIsCounted) {
  // 129 bytes of burst: the first operation leaves one byte, the second empties the bucket and is the last.
  EXPECT_TRUE(has(at(0), kUrgent));
  EXPECT_FALSE(has(at(0), kMiddle));
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0, 0));
  EXPECT_FALSE(has(at(0), kUrgent, 2));
  EXPECT_TRUE(has(at(0), kMiddle, 2));
  EXPECT_THAT(pick(at(0), kUrgent, 64, 2), IsEmpty());
  EXPECT_THAT(pick(at(0), kMiddle, 64, 2), ElementsAre(0, 0));
  EXPECT_EQ(engine_->counters().demoted_bytes[0], 2 * kSlice);
  EXPECT_EQ(engine_->counters().demoted_bytes[1], 0u);
  EXPECT_THAT(pick(at(0), kBulk, 64, 2), ElementsAre(1, 1));  // nobody demotes what has no limit
  EXPECT_EQ(engine_->counters().slices_sent, 6u);
}

TEST_F(Limits, WhatIsDemotedGoesBackWhenTheBucketFills) {
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0, 0));
  // 127 bytes of debt at 1000 bytes a second.
  const std::optional<Time> promotion = engine_->promotion(at(0));
  ASSERT_TRUE(promotion);
  EXPECT_EQ(*promotion, Time(127'000'001));
  EXPECT_FALSE(has(Time(127'000'000), kUrgent, 2));
  EXPECT_TRUE(has(Time(127'000'000), kMiddle, 2));
  EXPECT_TRUE(has(*promotion, kUrgent, 2));
  EXPECT_FALSE(has(*promotion, kMiddle, 2));
  EXPECT_FALSE(engine_->promotion(*promotion));
  EXPECT_THAT(pick(*promotion, kUrgent, 64, 2), ElementsAre(0));  // and that uses it up again
  EXPECT_THAT(pick(*promotion, kMiddle, 64, 2), ElementsAre(0));
  EXPECT_EQ(engine_->counters().demoted_bytes[0], kSlice);
  EXPECT_FALSE(engine_->promotion(*promotion));  // used up, but nothing waits
}

class TwoLimits : public Limits {
 protected:
  TwoLimits() : Limits({{0.9F, kUrgent}, {0.5F, kMiddle}, {0.1F, kBulk}}) {
    EngineConfig config = no_credit();
    config.classes = 3;
    config.hosts = config.world_size = 3;
    config.limits[0] = config.limits[1] = {BitsPerSecond(8000), Bytes(1)};
    engine_.reset();
    start(plan_, config);
  }
};

TEST_F(TwoLimits, DemotionGoesOnThroughClassesThatAreUsedUp) {
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0));
  EXPECT_THAT(pick(at(0), kMiddle), ElementsAre(0));  // of class 0, before what is less urgent
  EXPECT_FALSE(has(at(0), kMiddle));
  EXPECT_THAT(pick(at(0), kBulk), ElementsAre(1, 1, 2, 2));  // by urgency, as within a class
  EXPECT_EQ(engine_->counters().demoted_bytes[0], kSlice);
  EXPECT_EQ(engine_->counters().demoted_bytes[1], 2 * kSlice);
}

TEST_F(TwoLimits, TurnsGoRoundAllPeersWhateverTheirClass) {
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0));
  EXPECT_THAT(pick(at(0), kMiddle), ElementsAre(0));
  EXPECT_THAT(pick(at(0), kBulk, 1), ElementsAre(1));
  HostIndex next;
  ASSERT_TRUE(engine_->next_flow(at(0), kBulk, HostIndex(1), &next));
  EXPECT_EQ(next, HostIndex(2));
  ASSERT_TRUE(engine_->next_flow(at(0), kBulk, HostIndex(2), &next));
  EXPECT_EQ(next, HostIndex(1));
}

class SlowAboveFast : public Limits {
 protected:
  SlowAboveFast() {
    EngineConfig config = no_credit();
    config.classes = 3;
    config.hosts = config.world_size = 3;
    config.limits[0] = {BitsPerSecond(800), Bytes(1)};
    config.limits[1] = {BitsPerSecond(8000), Bytes(1)};
    engine_.reset();
    start(plan_, config);
  }
};

TEST_F(SlowAboveFast, WhatIsDemotedTwiceGoesBackToTheFirstClassThatFills) {
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0));
  EXPECT_THAT(pick(at(0), kMiddle), ElementsAre(0));  // nothing of class 1 waits, but of class 0
  const std::optional<Time> promotion = engine_->promotion(at(0));
  ASSERT_TRUE(promotion);
  EXPECT_EQ(*promotion, Time(127'000'001));
  EXPECT_FALSE(has(Time(127'000'000), kMiddle, 2));
  EXPECT_TRUE(has(*promotion, kMiddle, 2));
  EXPECT_FALSE(has(*promotion, kUrgent, 2));
}

TEST_F(Limits, AnAbortedJobDemotesNothing) {
  EXPECT_THAT(pick(at(0), kUrgent), ElementsAre(0, 0));
  step({.kind = Event::Kind::kAbort});
  EXPECT_FALSE(engine_->has_sends(at(0), kMiddle));
  EXPECT_FALSE(engine_->promotion(at(0)));
}

}  // namespace
}  // namespace tensorlane::engine::testing
