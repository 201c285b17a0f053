// Contributions that come to exist in parts, in directed scenarios under the virtual clock.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/simulation/scenarios.h"

namespace tensorlane::simulator {
namespace {

constexpr ClassId kUrgent{0}, kBulk{1};

// Every operation of every client, from one part to the next in a twentieth of a millisecond at most.
Scenario in_parts(std::uint16_t hosts, std::uint8_t rails) {
  Scenario s = quiet_scenario(hosts);
  s.engine.rails = s.plan.rails = rails;
  s.networks.resize(rails, s.networks[0]);
  s.client.in_parts = 1;
  s.client.part_takes = microseconds(50);
  s.record = true;
  return s;
}

class InParts : public testing::TestWithParam<std::tuple<int, protocol::Pattern, int>> {};

TEST_P(InParts, AllOperationsAreRight) {
  const auto [hosts, pattern, rails] = GetParam();
  Scenario s = in_parts(static_cast<std::uint16_t>(hosts), static_cast<std::uint8_t>(rails));
  for (Operation operation : {Operation::kAllreduce, Operation::kBroadcast, Operation::kAllgather, Operation::kBarrier,
                              Operation::kPush, Operation::kPull, Operation::kReduceScatter}) {
    for (std::uint64_t elements : {1u, 50u, 10'000u}) {
      auto& t = add_tensor(s, operation, elements * static_cast<std::uint64_t>(hosts), kBulk);
      t.pattern = pattern;
      t.slice_elements = 1000;
      t.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
      t.root_rank = Rank(static_cast<std::uint32_t>(hosts - 1));
      if (operation == Operation::kBarrier) t.elements = 0;
    }
  }
  s.iterations = 3;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, s.plan.tensors.size() * 3 * static_cast<std::size_t>(hosts));
  EXPECT_EQ(outcome.in_parts, outcome.operations * 6 / 7) << "all but barriers";
  EXPECT_GT(outcome.parts_placed, 100u);
}

INSTANTIATE_TEST_SUITE_P(All, InParts,
                         testing::Combine(testing::Values(2, 5),
                                          testing::Values(protocol::Pattern::kRing, protocol::Pattern::kParameterServer,
                                                          protocol::Pattern::kHalvingDoubling, protocol::Pattern::kTree,
                                                          protocol::Pattern::kWholeServer),
                                          testing::Values(1, 2)));

// Of a result that comes back while the contribution does not exist yet, no word is lost where the ring has room.
TEST(PartsOfOperations, ResultsAreToldWhileTheRestIsAwaited) {
  Scenario s = in_parts(2, 1);
  s.client.part_takes = milliseconds(1);
  auto& t = add_tensor(s, Operation::kAllreduce, 64 * 1024, kUrgent);
  t.pattern = protocol::Pattern::kParameterServer;
  t.slice_elements = 1024;
  const Outcome all = Simulation(s).run();
  EXPECT_EQ(finding_text(all), "");
  EXPECT_GT(all.parts_placed, 64u);
  s.client.places_lost = 0.5;
  const Outcome some = Simulation(s).run();
  EXPECT_EQ(finding_text(some), "");
  EXPECT_LT(some.parts_placed, all.parts_placed);
}

// The rank here that a process set has need not be the first of its host.
TEST(PartsOfOperations, ResultsOfASetAreToldToItsRank) {
  Scenario s = in_parts(2, 1);
  s.plan.rank_hosts = {HostIndex(0), HostIndex(0), HostIndex(1), HostIndex(1)};
  s.engine.world_size = 4;
  auto& t = add_tensor(s, Operation::kAllreduce, 64 * 1024, kUrgent);
  t.slice_elements = 1024;
  const std::array hosts = {HostIndex(0), HostIndex(1)};
  t.world = std::make_shared<const protocol::World>(std::vector<std::uint32_t>{1, 3}, hosts);
  s.iterations = 3;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 2u * 3);
  EXPECT_EQ(outcome.of_sets, outcome.operations);
  EXPECT_GT(outcome.parts_placed, 64u);
}

// Where a host has several ranks it waits for all of a tensor. A program that waits for one of which it has told a part
// leaves out the others all the same.
TEST(PartsOfOperations, AWaitBeforeTheRestCountsForTheOrder) {
  for (const auto ordering : {protocol::Ordering::kFunnel, protocol::Ordering::kConcurrent,
                              protocol::Ordering::kChained, protocol::Ordering::kCounters}) {
    Scenario s = in_parts(2, 1);
    s.plan.rank_hosts = {HostIndex(0), HostIndex(0), HostIndex(1), HostIndex(1)};
    s.engine.world_size = 4;
    s.plan.ordering = ordering;
    for (int i = 0; i < 4; ++i) add_tensor(s, Operation::kAllreduce, 1000, kUrgent);
    s.iterations = 8;
    s.client.ahead = false;
    s.client.in_step = true;
    s.client.raise = 0.5;
    const Outcome outcome = Simulation(s).run();
    EXPECT_EQ(finding_text(outcome), "");
    EXPECT_EQ(outcome.operations, 4u * 4 * 8);
    EXPECT_EQ(outcome.parts_placed, 0u);
  }
}

}  // namespace
}  // namespace tensorlane::simulator
