// Two jobs of two users on the same hosts, in directed scenarios under the virtual clock.
#include <gtest/gtest.h>

#include "tests/simulation/scenarios.h"

namespace tensorlane::simulator {
namespace {

constexpr ClassId kBulk{1};

Scenario crowd(std::uint16_t hosts) {
  Scenario s = quiet_scenario(hosts);
  for (int i = 0; i < 6; ++i) add_tensor(s, Operation::kAllreduce, 200'000, kBulk);
  s.iterations = 3;
  return s;
}

TEST(Neighbour, GoesOnBesideACrowd) {
  Scenario s = crowd(3);
  const Scenario& other = add_second_job(s);
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 3 * (6 * 3 + other.iterations));
  EXPECT_LT(outcome.neighbour_end, outcome.end);
}

TEST(Neighbour, DoesNotNoticeThatTheOtherJobsClientDies) {
  Scenario s = crowd(3);
  s.faults.push_back({.kind = FaultKind::kKillClient, .host = HostIndex(1), .at = Time(2'000'000)});
  const Scenario& other = add_second_job(s);
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
  EXPECT_FALSE(outcome.neighbour_aborted);
  EXPECT_GE(outcome.operations, 3 * other.iterations);
}

TEST(Neighbour, FailsWithItsMachine) {
  Scenario s = crowd(3);
  s.faults.push_back({.kind = FaultKind::kKillDaemon, .host = HostIndex(1), .at = Time(2'000'000)});
  Scenario& other = add_second_job(s);
  other.faults = s.faults;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.neighbour_aborted);
}

TEST(Neighbour, MayLeaveWhileTheOtherJobGoesOn) {
  Scenario s = crowd(3);
  s.leaves = true;
  Scenario& other = add_second_job(s);
  other.leaves = true;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 3 * (6 * 3 + other.iterations));
}

// Staging, the plan's growth, a buffer: whatever it is that the host refuses.
TEST(Neighbour, FailsAloneWhereThereIsNoMoreMemory) {
  for (std::uint64_t after = 0; after < 3; ++after) {
    Scenario s = crowd(3);
    Scenario& other = add_second_job(s);
    other.refusal = {HostIndex(2), after};
    const Outcome outcome = Simulation(s).run();
    EXPECT_EQ(finding_text(outcome), "") << after;
    EXPECT_TRUE(outcome.neighbour_aborted) << after;
    EXPECT_FALSE(outcome.aborted) << after;
    EXPECT_GE(outcome.operations, 3u * 6 * 3) << after;
  }
}

TEST(Neighbour, RegistersAgainWhatItHasUnregistered) {
  Scenario s = crowd(2);
  Scenario& other = add_second_job(s);
  add_tensor(other, Operation::kBroadcast, 500, kBulk).group = 1;
  other.shrink = Shrink{.range = {1, 1}, .iterations = 4, .returns = true};
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 2 * (6 * 3 + 2 * other.iterations));
}

}  // namespace
}  // namespace tensorlane::simulator
