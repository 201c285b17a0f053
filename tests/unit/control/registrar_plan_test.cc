// Plans that do not come in force: the leader says where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_host.h"

namespace tensorlane::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of what is not in force.
std::vector<std::string> notes_of(const OneHost& job) {
  std::vector<std::string> notes = job.notes;
  std::erase_if(notes, [](const std::string& line) { return line.find("is not in force") == std::string::npos; });
  return notes;
}

struct Stuck {
  Stuck() {
    job.lane_takes_plans = false;
    for (const std::uint32_t rank : {0U, 1U})
      (*job).register_group(rank, ports::SessionId(rank), 1, "g", {barrier("b")});
    job.deliver();
    (*job).tick(Time(1));
  }
  OneHost job{2};
};

TEST(RegistrarPlan, AHostThatHasNotGotItInForceIsNotedAndThenFailsTheJobByName) {
  Stuck stuck;
  OneHost& job = stuck.job;
  (*job).tick(Time(1) + (kWarning - milliseconds(30)));
  EXPECT_TRUE(notes_of(job).empty());
  (*job).tick(Time(1) + kWarning);
  (*job).tick(Time(1) + kWarning + milliseconds(30));
  EXPECT_THAT(notes_of(job), ElementsAre(HasSubstr("plan version 1 is not in force on h0 after ")));
  EXPECT_THAT(notes_of(job).front(), HasSubstr("group 'g'"));
  EXPECT_TRUE(job.failure.ok());
  (*job).tick(Time(1) + kError);
  EXPECT_EQ(job.failure.code(), Code::kTimedOut);
  EXPECT_THAT(job.failure.to_string(), HasSubstr("plan version 1 is not in force on h0 after "));
}

TEST(RegistrarPlan, WhoWaitsNoLongerIsToldWhereItIsNotInForce) {
  Stuck stuck;
  OneHost& job = stuck.job;
  (*job).overdue(ports::SessionId(1), 1);
  job.deliver(Time(1) + seconds(3));
  EXPECT_THAT(job.failure.to_string(), ::testing::AllOf(HasSubstr("plan version 1 is not in force on h0 after 3.0 s"),
                                                        HasSubstr("TENSORLANE_TIMEOUT of rank 1")));
}

// The time of one change is not that of the next.
TEST(RegistrarPlan, WhatIsInForceInTimeIsNotNoted) {
  OneHost job(1);
  for (int i = 0; i < 5; ++i) {
    (*job).tick(Time(1) + kWarning * i);
    ASSERT_TRUE(job.add(fmt::format("g{}", i), 1).ok());
  }
  EXPECT_TRUE(notes_of(job).empty());
}

}  // namespace
}  // namespace tensorlane::control
