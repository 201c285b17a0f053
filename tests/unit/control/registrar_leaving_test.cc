// Groups that come and go in the plan of a job of one host.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_host.h"

namespace tensorlane::control {
namespace {

using ::testing::HasSubstr;

TEST(RegistrarLeaving, TheHashIsThatOfTheTensorsThatAreThere) {
  OneHost job(1);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(job.add("a", 3).ok());
    ASSERT_TRUE(job.add("b", 2).ok());
    ASSERT_TRUE(job.remove("a").ok());
    EXPECT_EQ(job.totals().hash, job.plan().hash());
    EXPECT_EQ(job.totals().tensors, 2u);
    ASSERT_TRUE(job.add("c", 2).ok());
    EXPECT_EQ(job.plan().tensors[0].name, "c.0");
    ASSERT_TRUE(job.remove("b").ok());
    ASSERT_TRUE(job.remove("c").ok());
    EXPECT_EQ(job.totals().hash, job.plan().hash());
    EXPECT_EQ(job.totals().tensors, 0u);
    EXPECT_EQ(job.plan().tensors.size(), 5u);
  }
  EXPECT_EQ(job.remove("a").code(), Code::kNotFound);
  EXPECT_TRUE(job.failure.ok()) << job.failure.to_string();
}

// Tables have an entry for each place, vacant or not.
TEST(RegistrarLeaving, PlacesThatAreLeftInPiecesDoNotMakeThePlanLarger) {
  constexpr std::size_t kGroup = 2048, kGroups = kMaxPlanTensors / kGroup;
  OneHost job(1);
  for (std::size_t g = 0; g < kGroups; ++g) ASSERT_TRUE(job.add(fmt::format("g{}", g), kGroup).ok());
  EXPECT_EQ(job.add("more", 1).code(), Code::kResourceExhausted);
  for (std::size_t g = 0; g < kGroups; g += 2) ASSERT_TRUE(job.remove(fmt::format("g{}", g)).ok());
  const Status refused = job.add("large", kGroup + 1);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.to_string(), HasSubstr("no 2049 in a row are vacant: group 'large' of job 'j': register in "
                                             "smaller groups"));
  EXPECT_TRUE(job.add("small", kGroup - 1).ok());
  EXPECT_TRUE(job.remove("g1").ok());
  EXPECT_TRUE(job.add("large", kGroup + 1).ok()) << "its name is free, and two pieces have become one";
  EXPECT_LE(job.plan().tensors.size(), kMaxPlanTensors);
  EXPECT_EQ(job.totals().hash, job.plan().hash());
  EXPECT_TRUE(job.failure.ok()) << job.failure.to_string();
}

// ---- what only some ranks unregister ----

TEST(RegistrarLeaving, WhoIsRefusedIsTheRankThatAskedBefore) {
  OneHost job(2);
  ASSERT_TRUE(job.add("g", 1).ok());
  job.ask(0, "g", 2, seconds(1));
  job.deliver();
  (*job).tick(Time(1) + seconds(1));  // it is on its way to the hosts that the group stays
  job.ask(1, "g", 2);
  job.deliver();
  ASSERT_EQ(job.told(0, 2).value().code(), Code::kTimedOut);
  EXPECT_FALSE(job.told(1, 2)) << "it is the first of those who ask anew";
  job.ask(0, "g", 3);
  job.deliver();
  EXPECT_TRUE(job.told(0, 3).value().ok());
  EXPECT_TRUE(job.told(1, 2).value().ok());
}

TEST(RegistrarLeaving, TheLeastPatienceOfAllCounts) {
  for (const std::uint32_t hurried : {0U, 1U}) {
    OneHost job(3);
    ASSERT_TRUE(job.add("g", 1).ok());
    for (const std::uint32_t rank : {0U, 1U}) job.ask(rank, "g", 2, rank == hurried ? seconds(1) : seconds(50));
    job.deliver();
    (*job).tick(Time(1) + milliseconds(800));
    job.deliver();
    EXPECT_FALSE(job.told(hurried, 2));
    (*job).tick(Time(1) + milliseconds(999));
    job.deliver();
    for (const std::uint32_t rank : {0U, 1U})
      EXPECT_THAT(job.told(rank, 2).value().to_string(),
                  HasSubstr("rank 2 on host h0 has not unregistered after 1.0 s"));
  }
}

TEST(RegistrarLeaving, WhoIsMissingIsReportedAndNotWaitedForWithoutEnd) {
  OneHost job(2);
  ASSERT_TRUE(job.add("g", 1).ok());
  job.ask(1, "g", 2);
  job.deliver();
  (*job).tick(Time(1) + (kWarning - milliseconds(30)));
  EXPECT_TRUE(job.late.empty());
  (*job).tick(Time(1) + kWarning);
  (*job).tick(Time(1) + kWarning + milliseconds(30));
  EXPECT_THAT(job.late, testing::ElementsAre("0: group 'g', which others unregister"));
  (*job).tick(Time(1) + (kError - milliseconds(30)));
  job.deliver();
  EXPECT_FALSE(job.told(1, 2));
  (*job).tick(Time(1) + kError);
  job.deliver();
  EXPECT_EQ(job.told(1, 2).value().code(), Code::kTimedOut);
  EXPECT_TRUE(job.failure.ok()) << job.failure.to_string();
}

TEST(RegistrarLeaving, ARankThatHadLeftBeforeIsNotWaitedFor) {
  OneHost job(2);
  ASSERT_TRUE(job.add("g", 1).ok());
  (*job).rank_left(1);
  job.ask(0, "g", 2);
  job.deliver();
  EXPECT_EQ(job.told(0, 2).value().code(), Code::kAborted);
}

// As a client does that has waited no longer.
TEST(RegistrarLeaving, TheLastOfARanksQuestionsGetsTheAnswer) {
  OneHost job(2);
  ASSERT_TRUE(job.add("g", 1).ok());
  job.ask(0, "g", 2);
  job.ask(0, "g", 3);
  job.ask(1, "g", 2);
  job.deliver();
  EXPECT_EQ(job.told(0, 2).value().code(), Code::kAlreadyExists);
  EXPECT_TRUE(job.told(0, 3).value().ok());
  EXPECT_TRUE(job.told(1, 2).value().ok());
}

TEST(RegistrarLeaving, SoManyGroupsMayWaitForTheOthers) {
  OneHost job(2);
  for (std::size_t g = 0; g <= kMaxPendingGroups; ++g) ASSERT_TRUE(job.add(fmt::format("g{}", g), 1).ok());
  for (std::size_t g = 0; g <= kMaxPendingGroups; ++g) {
    EXPECT_FALSE(job.told(0, 2)) << g;
    job.ask(0, fmt::format("g{}", g), 2);
    job.deliver();
  }
  EXPECT_EQ(job.told(0, 2).value().code(), Code::kResourceExhausted);
}

TEST(RegistrarLeaving, AHostSpeaksForItsOwnRanks) {
  OneHost job(1);
  ASSERT_TRUE(job.add("g", 1).ok());
  EXPECT_FALSE((*job).handle("h1", MessageType::kUnregister, json::array({"g", 0U, 0U, 0U}), Time(1)));
  job.deliver();
  EXPECT_EQ(job.totals().tensors, 1U);
}

}  // namespace
}  // namespace tensorlane::control
