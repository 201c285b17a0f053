#include "daemon/transport/dpdk/port/neighbours.h"

#include <gtest/gtest.h>

#include <vector>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

Time at(std::int64_t ms) {
  return Time{} + milliseconds(ms);
}

// All questions of a time, in steps of 1 ms.
std::vector<std::pair<std::int64_t, Neighbours::Question>> questions(Neighbours& table, std::int64_t from,
                                                                     std::int64_t to) {
  std::vector<std::pair<std::int64_t, Neighbours::Question>> all;
  for (std::int64_t ms = from; ms < to; ++ms)
    while (const auto question = table.next_question(at(ms))) all.emplace_back(ms, *question);
  return all;
}

TEST(Neighbours, AsksEverMoreRarely) {
  Neighbours table({});
  const auto index = table.want(ip("10.0.0.2")).value();
  EXPECT_EQ(table.mac(index), nullptr);
  const auto asked = questions(table, 0, 60'000);
  ASSERT_GE(asked.size(), 8U);
  for (std::size_t i = 1; i < asked.size(); ++i) {
    const std::int64_t pause = asked[i].first - asked[i - 1].first;
    EXPECT_GE(pause, 100);
    EXPECT_LE(pause, 5'010);
    EXPECT_FALSE(asked[i].second.at);
  }
  EXPECT_GE(asked.back().first, 55'000);
  EXPECT_LE(asked.size(), 20U);
}

TEST(Neighbours, TakesAnAnswerOnlyWhileItsQuestionIsOpen) {
  Neighbours table({});
  const auto index = table.want(ip("10.0.0.2")).value();
  EXPECT_FALSE(table.confirm(at(0), ip("10.0.0.2"), kMacB)) << "not asked yet";
  ASSERT_EQ(questions(table, 0, 50).size(), 1U);
  EXPECT_FALSE(table.confirm(at(50), ip("10.0.0.3"), kMacB)) << "another one";
  EXPECT_TRUE(table.confirm(at(50), ip("10.0.0.2"), kMacB));
  ASSERT_NE(table.mac(index), nullptr);
  EXPECT_EQ(*table.mac(index), kMacB);
  EXPECT_FALSE(table.confirm(at(51), ip("10.0.0.2"), kMacRouter)) << "a second answer";
  EXPECT_EQ(*table.mac(index), kMacB);
  EXPECT_EQ(table.size(), 1U);
}

TEST(Neighbours, TakesNoLateAnswer) {
  Neighbours table({});
  const auto index = table.want(ip("10.0.0.2")).value();
  ASSERT_TRUE(table.next_question(at(0)));
  EXPECT_FALSE(table.confirm(at(1'500), ip("10.0.0.2"), kMacB));
  EXPECT_EQ(table.mac(index), nullptr);
}

// Somebody who sends answers all the time meets an open question.
TEST(Neighbours, BelieveNobodyElseWhereOneAloneWasAsked) {
  Neighbours table({});
  const auto index = table.want(ip("10.0.0.2")).value();
  ASSERT_TRUE(table.next_question(at(0)));
  ASSERT_TRUE(table.confirm(at(1), ip("10.0.0.2"), kMacB));
  const auto again = questions(table, 29'000, 30'500);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_FALSE(table.confirm(at(30'500), ip("10.0.0.2"), kMacRouter));
  EXPECT_TRUE(table.confirm(at(30'501), ip("10.0.0.2"), kMacB));
  EXPECT_EQ(*table.mac(index), kMacB);
}

TEST(Neighbours, AsksAgainAndFollowsANeighbourThatChanged) {
  Neighbours table({});
  const auto index = table.want(ip("10.0.0.2")).value();
  ASSERT_TRUE(table.next_question(at(0)));
  ASSERT_TRUE(table.confirm(at(1), ip("10.0.0.2"), kMacB));
  EXPECT_TRUE(questions(table, 2, 29'000).empty());
  const auto again = questions(table, 29'000, 40'000);
  ASSERT_GE(again.size(), 4U);
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].second.at.has_value(), i < 3) << i;
  EXPECT_EQ(*table.mac(index), kMacB) << "silence changes nothing";
  EXPECT_TRUE(table.confirm(at(again.back().first + 10), ip("10.0.0.2"), kMacRouter));
  EXPECT_EQ(*table.mac(index), kMacRouter);
}

TEST(Neighbours, IsBoundedAndKeepsItsPlaces) {
  Neighbours table({.entries = 3});
  table.add_static(ip("10.0.0.9"), kMacB);
  const auto fixed = table.want(ip("10.0.0.9")).value();
  const auto one = table.want(ip("10.0.0.1")).value();
  ASSERT_TRUE(table.want(ip("10.0.0.2")).ok());
  EXPECT_EQ(table.want(ip("10.0.0.3")).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(table.want(ip("10.0.0.1")).value(), one);
  table.release(one);
  EXPECT_FALSE(table.want(ip("10.0.0.3")).ok()) << "one user is left";
  table.release(one);
  EXPECT_TRUE(table.want(ip("10.0.0.3")).ok());
  table.release(fixed);
  EXPECT_EQ(*table.mac(fixed), kMacB) << "a static one stays";
}

TEST(Neighbours, AnAddressKnowsNothingOfTheOneThatHadItsPlace) {
  Neighbours table({.entries = 1});
  const auto first = table.want(ip("10.0.0.2")).value();
  ASSERT_TRUE(table.next_question(at(0)));
  ASSERT_TRUE(table.confirm(at(1), ip("10.0.0.2"), kMacB));
  table.release(first);
  const auto second = table.want(ip("10.0.0.3")).value();
  EXPECT_EQ(table.mac(second), nullptr);
  const auto asked = questions(table, 2, 10);
  ASSERT_EQ(asked.size(), 1U) << "at once";
  EXPECT_EQ(asked[0].second.subject, ip("10.0.0.3"));
  EXPECT_FALSE(asked[0].second.at);
  EXPECT_FALSE(table.confirm(at(10), ip("10.0.0.2"), kMacB)) << "nobody wants it any more";
}

TEST(Neighbours, AsksForManyAtABoundedRate) {
  Neighbours table({.entries = 5000, .questions_per_second = 500});
  for (int i = 0; i < 4000; ++i)
    ASSERT_TRUE(table.want(ip("10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250 + 1))).ok());
  const auto asked = questions(table, 0, 2'000);
  EXPECT_GE(asked.size(), 900U);
  EXPECT_LE(asked.size(), 1'100U);
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
