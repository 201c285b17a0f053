// The engine learns urgencies from the waits of a job.
#include "daemon/engine/urgency/observed_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tensorlane::engine {
namespace {

using testing::ElementsAre;

using Waits = std::vector<std::uint32_t>;  // tensors, in the order of one iteration

// Iteration `number` (from 1) of a rank: each tensor's operation has that sequence.
void iterate(ObservedOrder& order, std::uint32_t rank, std::uint64_t number, const Waits& waits) {
  for (const std::uint32_t tensor : waits) order.wait(rank, TensorId(tensor), Sequence(number));
}

std::vector<float> urgencies(ObservedOrder& order, std::size_t tensors) {
  std::vector<float> all(tensors);
  order.urgencies(all);
  return all;
}

TEST(ObservedOrder, LearnsTheOrderOfTheWaits) {
  ObservedOrder order(4, 1, {0, 2});
  for (std::uint64_t i = 1; i <= 2; ++i) {
    EXPECT_FALSE(order.learned());
    iterate(order, 0, i, {2, 0, 3, 1});
  }
  EXPECT_FALSE(order.learned());  // the second iteration ends with the third one's first wait
  iterate(order, 0, 3, {2});
  ASSERT_TRUE(order.learned());
  EXPECT_THAT(urgencies(order, 4), ElementsAre(0.75F, 0.25F, 1.0F, 0.5F));
}

TEST(ObservedOrder, TheFirstIterationsDoNotCount) {
  ObservedOrder order(3, 1, {2, 1});
  iterate(order, 0, 1, {0, 1, 2});
  iterate(order, 0, 2, {0, 1, 2});
  iterate(order, 0, 3, {2, 1, 0});
  iterate(order, 0, 4, {0});
  ASSERT_TRUE(order.learned());
  EXPECT_THAT(urgencies(order, 3), ElementsAre(testing::FloatEq(1.0F / 3), testing::FloatEq(2.0F / 3), 1.0F));
}

TEST(ObservedOrder, WhatNobodyWaitsForComesLast) {
  ObservedOrder order(4, 1, {0, 1});
  iterate(order, 0, 1, {3, 1});
  iterate(order, 0, 2, {3});
  ASSERT_TRUE(order.learned());
  EXPECT_THAT(urgencies(order, 4), ElementsAre(0.5F, 0.75F, 0.25F, 1.0F));
}

TEST(ObservedOrder, ARepeatedWaitIsOneAndEndsNothing) {
  ObservedOrder order(2, 1, {0, 1});
  iterate(order, 0, 1, {1, 1, 1, 0, 1});
  EXPECT_FALSE(order.learned());
  iterate(order, 0, 2, {1});
  ASSERT_TRUE(order.learned());
  EXPECT_THAT(urgencies(order, 2), ElementsAre(0.5F, 1.0F));
}

TEST(ObservedOrder, RanksThatDifferMeetInTheMiddle) {
  ObservedOrder order(3, 3, {0, 1});
  for (std::uint64_t i = 1; i <= 2; ++i) {
    iterate(order, 0, i, {0, 1, 2});
    iterate(order, 1, i, {1, 0, 2});
    EXPECT_FALSE(order.learned());
    iterate(order, 2, i, {1, 0, 2});
  }
  ASSERT_TRUE(order.learned());  // 0 at places 0, 1, 1; 1 at 1, 0, 0; 2 always last
  const auto all = urgencies(order, 3);
  EXPECT_GT(all[1], all[0]);
  EXPECT_GT(all[0], all[2]);
}

TEST(ObservedOrder, HowRanksInterleaveDoesNotMatter) {
  std::mt19937 random(5);
  std::vector<Waits> streams(4);
  for (Waits& stream : streams) {
    stream.resize(12);
    std::iota(stream.begin(), stream.end(), 0);
    std::shuffle(stream.begin(), stream.end(), random);
  }
  std::vector<float> expected;
  for (int round = 0; round < 20; ++round) {
    ObservedOrder order(12, 4, {1, 2});
    std::vector<std::size_t> at(4, 0);
    while (!order.learned()) {
      const std::size_t rank = random() % 4;
      const std::size_t i = at[rank]++;
      order.wait(static_cast<std::uint32_t>(rank), TensorId(streams[rank][i % 12]), Sequence(1 + i / 12));
    }
    const auto all = urgencies(order, 12);
    if (round == 0) expected = all;
    EXPECT_EQ(all, expected);
  }
}

TEST(ObservedOrder, LaterWaitsChangeNothing) {
  ObservedOrder order(2, 1, {0, 1});
  iterate(order, 0, 1, {0, 1});
  for (std::uint64_t i = 2; i < 50; ++i) iterate(order, 0, i, {1, 0});
  ASSERT_TRUE(order.learned());
  EXPECT_THAT(urgencies(order, 2), ElementsAre(1.0F, 0.5F));
}

}  // namespace
}  // namespace tensorlane::engine
