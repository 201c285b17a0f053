// The engine in directed scenarios under the virtual clock.
#include <gtest/gtest.h>

#include "tests/simulation/scenarios.h"

namespace tensorlane::simulator {
namespace {

constexpr ClassId kUrgent{0}, kBulk{1};

TEST(Swarm, SameSeedSameDigest) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = Simulation(random_scenario(seed)).run();
    const Outcome second = Simulation(random_scenario(seed)).run();
    EXPECT_EQ(finding_text(first), "") << seed;
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.completed, second.completed) << seed;
  }
}

TEST(Swarm, OtherSeedOtherDigest) {
  EXPECT_NE(Simulation(random_scenario(1)).run().digest, Simulation(random_scenario(2)).run().digest);
}

class Operations : public testing::TestWithParam<std::tuple<int, protocol::Pattern, Dtype>> {};

TEST_P(Operations, AreRightOnEveryHost) {
  const auto [hosts, pattern, dtype] = GetParam();
  Scenario s = quiet_scenario(static_cast<std::uint16_t>(hosts));
  s.engine.eager_limit = kib(8);  // so that three slices of a shard, announced and granted, need not be long
  for (Operation operation : {Operation::kAllreduce, Operation::kBroadcast, Operation::kAllgather, Operation::kBarrier,
                              Operation::kPush, Operation::kPull, Operation::kReduceScatter, Operation::kReduce,
                              Operation::kGather, Operation::kScatter, Operation::kAlltoall}) {
    for (std::uint64_t elements : {1u, 17u, 10'000u}) {
      auto& t =
          add_tensor(s, operation, elements * static_cast<std::uint64_t>(hosts), elements == 17 ? kUrgent : kBulk);
      t.pattern = pattern;
      t.dtype = dtype;
      t.slice_elements = 4096;
      t.reduce = elements == 17 ? (is_integer(dtype) ? ReduceOp::kProduct : ReduceOp::kAverage) : ReduceOp::kSum;
      if (operation == Operation::kReduceScatter) t.row = elements == 17 ? 17 : 1;
      t.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
      t.root_rank = Rank(static_cast<std::uint32_t>(hosts - 1));
      if (operation == Operation::kBarrier) t.elements = 0;
      if (operation == Operation::kAlltoall) t.elements *= 2;
    }
  }
  s.iterations = 2;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, s.plan.tensors.size() * 2 * static_cast<std::size_t>(hosts));
}

INSTANTIATE_TEST_SUITE_P(All, Operations,
                         testing::Combine(testing::Values(2, 5),
                                          testing::Values(protocol::Pattern::kRing, protocol::Pattern::kParameterServer,
                                                          protocol::Pattern::kHalvingDoubling, protocol::Pattern::kTree,
                                                          protocol::Pattern::kWholeServer),
                                          testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16,
                                                          Dtype::kBfloat16, Dtype::kInt8, Dtype::kInt64)));

// Nothing comes back from the owner of a push or a reduce-scatter, so only its grants keep the others from running
// ahead of what it has room to note: here it is slow, and the others' next operations are ready at once.
class StaysWithOwners : public testing::TestWithParam<std::tuple<Operation, protocol::Pattern>> {};

TEST_P(StaysWithOwners, WaitsForAnOwnerThatIsBehind) {
  const auto [operation, pattern] = GetParam();
  Scenario s = quiet_scenario(4);
  add_tensor(s, operation, 100, kUrgent).pattern = pattern;
  s.client.think = microseconds(1);
  s.iterations = 12;
  s.faults.push_back(
      {.kind = FaultKind::kFreezeClient, .host = HostIndex(0), .at = Time(1000), .until = Time(50'000'000)});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 12u * 4);
}

INSTANTIATE_TEST_SUITE_P(All, StaysWithOwners,
                         testing::Combine(testing::Values(Operation::kPush, Operation::kReduceScatter,
                                                          Operation::kReduce),
                                          testing::Values(protocol::Pattern::kRing, protocol::Pattern::kParameterServer,
                                                          protocol::Pattern::kHalvingDoubling, protocol::Pattern::kTree,
                                                          protocol::Pattern::kWholeServer)));

// The arm without priorities: one class whatever the plan says, also when a lane asks for the others.
TEST(SingleQueue, MovesEveryClassThroughOne) {
  Scenario s = quiet_scenario(3);
  s.engine.single_queue = true;
  for (int i = 0; i < 4; ++i) add_tensor(s, Operation::kAllreduce, 50'000, i % 2 == 0 ? kUrgent : kBulk);
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 3u * 4);
}

// Hosts 0 and 3 send bulk, host 1 something urgent, and all of it meets in the slow port towards host 2.
Duration urgent_time(Policy policy, bool with_bulk) {
  Scenario s = quiet_scenario(4);
  auto& urgent = add_tensor(s, Operation::kBroadcast, 1 << 18, kUrgent);
  urgent.pattern = protocol::Pattern::kParameterServer;
  urgent.root = HostIndex(1);
  urgent.root_rank = Rank(1);
  for (std::uint16_t root : {std::uint16_t{0}, std::uint16_t{3}}) {
    if (!with_bulk) continue;
    auto& bulk = add_tensor(s, Operation::kBroadcast, 2 << 20, kBulk);
    bulk.pattern = protocol::Pattern::kParameterServer;
    bulk.root = HostIndex(root);
    bulk.root_rank = Rank(root);
  }
  for (HostPorts& ports : s.networks[0].hosts) {
    ports.downlink.policy = policy;
    ports.downlink.buffer = mib(4);
  }
  s.networks[0].hosts[2].downlink.rate = BitsPerSecond(250'000'000);
  s.client.think = microseconds(10);
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  return outcome.completed[2][0] - Time(0);
}

TEST(Priority, StrictPortsLetUrgentPassAnotherHostsBulk) {
  const double alone = to_seconds(urgent_time(Policy::kStrict, false));
  EXPECT_LE(to_seconds(urgent_time(Policy::kStrict, true)), 1.3 * alone);
  EXPECT_GE(to_seconds(urgent_time(Policy::kFifo, true)), 1.8 * alone);
}

// Host 0 sends something urgent with a limit that lets about every other operation pass, and what it demotes meets host
// 1's bulk in the port towards host 2: operations of one slice overtake each other.
Outcome limited_broadcast(RateLimit limit) {
  Scenario s = quiet_scenario(3);
  s.engine.limits[0] = limit;
  for (std::uint16_t root : {std::uint16_t{0}, std::uint16_t{1}}) {
    auto& t = add_tensor(s, Operation::kBroadcast, 2 << 20, root == 0 ? kUrgent : kBulk);
    t.pattern = protocol::Pattern::kParameterServer;
    t.root = HostIndex(root);
    t.root_rank = Rank(root);
    t.slice_elements = 1 << 20;  // sixteen operations
  }
  s.networks[0].hosts[2].downlink.rate = BitsPerSecond(250'000'000);
  s.client.think = microseconds(10);
  return Simulation(s).run();
}

TEST(Limits, SlicesOfTwoClassesArriveWhole) {
  const Outcome outcome = limited_broadcast({BitsPerSecond(60'000'000), kib(300)});
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_EQ(outcome.operations, 3u * 2);
  EXPECT_GT(outcome.demoted, mib(4).value);
}

TEST(Limits, WhatStaysBelowIsNotDemoted) {
  EXPECT_EQ(limited_broadcast({BitsPerSecond(60'000'000), mib(17)}).demoted, 0u);
  EXPECT_EQ(limited_broadcast({}).demoted, 0u);
}

Scenario training(std::uint16_t hosts) {
  Scenario s = quiet_scenario(hosts);
  for (int i = 0; i < 6; ++i) {
    add_tensor(s, Operation::kAllreduce, 30'000, i < 3 ? kUrgent : kBulk).pattern =
        i % 2 == 0 ? protocol::Pattern::kRing : protocol::Pattern::kParameterServer;
  }
  s.iterations = 20;  // several milliseconds each
  return s;
}

TEST(Faults, OneDirectionCutAbortsEveryHostWithinTheDetectionTime) {
  Scenario s = training(4);
  const Time cut = Time(5'000'000);
  s.faults.push_back({FaultKind::kPartition, HostIndex(1), HostIndex(2), cut});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
  // The settling time of a run is 150 ms.
  EXPECT_LE(outcome.end.value, cut.value + (s.detection + s.heartbeat * 4 + milliseconds(150)).value);
}

TEST(Faults, ShortCutHealsAndEverythingCompletes) {
  Scenario s = training(4);
  s.iterations = 20;
  s.faults.push_back({FaultKind::kPartition, HostIndex(1), HostIndex(2), Time(2'000'000), Time(100'000'000)});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_FALSE(outcome.aborted);
  EXPECT_EQ(outcome.operations, 4u * 6 * 20);
}

TEST(Faults, FrozenClientAborts) {
  Scenario s = training(3);
  s.faults.push_back({FaultKind::kFreezeClient, HostIndex(2), {}, Time(5'000'000)});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
}

TEST(Faults, ClientThatThawsInTimeCostsNothingButTime) {
  Scenario s = training(3);
  s.iterations = 20;
  s.faults.push_back({FaultKind::kFreezeClient, HostIndex(2), {}, Time(1'000'000), Time(150'000'000)});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_FALSE(outcome.aborted);
  EXPECT_GE(outcome.end.value, 150'000'000);
}

TEST(Faults, DeadDaemonAbortsTheOthers) {
  Scenario s = training(4);
  s.faults.push_back({FaultKind::kKillDaemon, HostIndex(0), {}, Time(5'000'000)});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
}

TEST(Faults, DeadClientAbortsLongBeforeTheDetectionTime) {
  Scenario s = training(4);
  const Time death = Time(5'000'000);
  s.faults.push_back({FaultKind::kKillClient, HostIndex(3), {}, death});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
  EXPECT_LE(outcome.end.value, death.value + (s.heartbeat * 3 + milliseconds(150)).value);
}

TEST(Faults, LossCostsTimeOnly) {
  Scenario s = training(4);
  s.iterations = 5;
  s.networks[0].loss = 0.1;
  s.networks[0].packet = kib(4);
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_GT(outcome.lost, 0u);
  EXPECT_EQ(outcome.operations, 4u * 6 * 5);
}

// One flow after the other, each of them several times, in the middle of what it carries.
TEST(Faults, LostConnectionsLoseNothingAndRepeatNothing) {
  for (const bool done_when_acknowledged : {false, true}) {
    Scenario s = quiet_scenario(3);
    s.engine.eager_limit = Bytes(4096);
    s.lane.done_when_acknowledged = done_when_acknowledged;
    for (int i = 0; i < 6; ++i)
      add_tensor(s, Operation::kAllreduce, i < 3 ? 500 : 100'000, i % 2 == 0 ? kUrgent : kBulk);
    s.iterations = 4;
    const Time end = Simulation(s).run().end;
    const std::size_t levels = 3, times = 8;
    for (std::size_t i = 0; i < 3 * levels * times; ++i) {
      Fault fault{.kind = FaultKind::kResetFlow};
      fault.host = HostIndex(static_cast<std::uint16_t>(i % 3));
      fault.peer = HostIndex(static_cast<std::uint16_t>((i + 1) % 3));
      fault.level = i / 3 % levels;
      fault.at = fault.until = Time(end.value / 2 * static_cast<std::int64_t>(i) / (3 * levels * times));
      s.faults.push_back(fault);
    }
    const Outcome outcome = Simulation(s).run();
    EXPECT_EQ(finding_text(outcome), "");
    EXPECT_FALSE(outcome.aborted);
    EXPECT_EQ(outcome.operations, 6u * 4 * 3);
    EXPECT_GT(outcome.resent, 5u);
  }
}

// Both hosts live and say so, but do not reach each other on the flow: the detection time bounds the attempts.
TEST(Faults, AConnectionThatDoesNotComeBackAbortsEveryHost) {
  Scenario s = quiet_scenario(2);
  s.detection = milliseconds(50);
  s.heartbeat = milliseconds(5);
  add_tensor(s, Operation::kAllreduce, 2'000'000, kBulk);
  const Time at(1'000'000);
  s.faults.push_back({FaultKind::kPartition, HostIndex(0), HostIndex(1), at, at + milliseconds(200)});
  s.faults.push_back(
      {.kind = FaultKind::kResetFlow, .host = HostIndex(0), .peer = HostIndex(1), .at = at, .until = at, .level = 2});
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_TRUE(outcome.aborted);
}

TEST(Faults, StaleFramesAreCountedAndDropped) {
  Scenario s = training(3);
  s.iterations = 5;
  s.replay = 0.2;
  const Outcome outcome = Simulation(s).run();
  EXPECT_EQ(finding_text(outcome), "");
  EXPECT_GT(outcome.stale, 0u);
}

}  // namespace
}  // namespace tensorlane::simulator
