#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

struct Shape {
  std::size_t hosts, per_host;
  protocol::Pattern pattern;
  std::size_t rails = 1;
};
class Shapes : public LaneTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(Shapes, SumsAndAverages) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  protocol::PlanTensor average = allreduce(33333, Dtype::kFloat32, pattern);
  average.reduce = ReduceOp::kAverage;
  average.cls = ClassId(1);
  start(hosts, per_host, {allreduce(100, Dtype::kFloat32, pattern), average});
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  const float sum = static_cast<float>(world * (world + 1) / 2);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (int i = 0; i < 100; ++i) client.data<float>(0)[i] = static_cast<float>(rank + 1);
      for (int i = 0; i < 33333; ++i)
        client.data<float>(448)[i] = static_cast<float>((rank + 1) * static_cast<unsigned>(i % 5));
      client.submit(1, sequence);
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      for (int i = 0; i < 100; ++i) ASSERT_EQ(client.data<float>(0)[i], sum);
      for (int i = 0; i < 33333; ++i)
        ASSERT_EQ(client.data<float>(448)[i], sum * static_cast<float>(i % 5) / static_cast<float>(world));
    });
  }
}

// 2048 + 1 + 1 + ... : partial sums in 16 bits would lose every 1.
TEST_P(Shapes, SixteenBitSumsAreRoundedOnce) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  start(hosts, per_host, {allreduce(5000, Dtype::kBfloat16, pattern)});
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  each_client([&](FakeClient& client, std::uint32_t rank) {
    const std::uint16_t value = rank == 0 ? 0x4380 : 0x3f80;  // 256 and 1 in bfloat16: 256 + 1 rounds back to 256
    for (int i = 0; i < 5000; ++i) client.data<std::uint16_t>(0)[i] = value;
    client.submit(0, 1);
  });
  const float exact = 256.0F + static_cast<float>(world - 1);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &exact, sizeof bits);
  const auto expected = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(client.data<std::uint16_t>(0)[i], expected);
  });
}

TEST_P(Shapes, BroadcastFromTheLastRankAndAllgather) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  protocol::PlanTensor broadcast = allreduce(20000, Dtype::kFloat32, pattern);
  broadcast.operation = Operation::kBroadcast;
  broadcast.root_rank = Rank(world - 1);
  broadcast.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
  protocol::PlanTensor gather = allreduce(world * 1000, Dtype::kFloat32, pattern);
  gather.operation = Operation::kAllgather;
  start(hosts, per_host, {broadcast, gather});
  each_client([&](FakeClient& client, std::uint32_t rank) {
    for (int i = 0; i < 20000; ++i)
      client.data<float>(0)[i] = static_cast<float>(rank * 100000 + static_cast<unsigned>(i));
    for (unsigned i = 0; i < 1000; ++i) client.data<float>(80000)[rank * 1000 + i] = static_cast<float>(rank * 10 + i);
    client.submit(0, 1);
    client.submit(1, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    ASSERT_EQ(client.wait(1, 1), Code::kOk);
    for (int i = 0; i < 20000; ++i)
      ASSERT_EQ(client.data<float>(0)[i], static_cast<float>((world - 1) * 100000 + static_cast<unsigned>(i)));
    for (unsigned i = 0; i < world * 1000; ++i)
      ASSERT_EQ(client.data<float>(80000)[i], static_cast<float>(i / 1000 * 10 + i % 1000));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, Shapes,
    ::testing::Values(Shape{1, 1, protocol::Pattern::kRing}, Shape{1, 3, protocol::Pattern::kRing},
                      Shape{2, 1, protocol::Pattern::kRing}, Shape{2, 2, protocol::Pattern::kParameterServer},
                      Shape{3, 1, protocol::Pattern::kRing}, Shape{4, 1, protocol::Pattern::kParameterServer},
                      Shape{3, 2, protocol::Pattern::kRing}, Shape{3, 2, protocol::Pattern::kHalvingDoubling},
                      Shape{4, 1, protocol::Pattern::kTree}, Shape{2, 2, protocol::Pattern::kParameterServer, 2},
                      Shape{3, 1, protocol::Pattern::kRing, 2}, Shape{3, 2, protocol::Pattern::kHalvingDoubling, 4}),
    [](const auto& info) {
      return std::to_string(info.param.hosts) + "x" + std::to_string(info.param.per_host) +
             protocol::pattern_name(info.param.pattern) + std::to_string(info.param.rails);
    });

TEST_F(LaneTest, AbortFailsWhatIsPendingAndNamesTheCause) {
  start(2, 1, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  ASSERT_TRUE(hosts_[0]->clients[0]->pending(0, 1));
  ASSERT_TRUE(hosts_[0]->lane->abort_job(kJob, {Code::kAborted, "the test has had enough", "here", ""}).ok());
  EXPECT_EQ(hosts_[0]->clients[0]->wait_failure().what(), "the test has had enough");
  EXPECT_EQ(hosts_[0]->clients[0]->wait(0, 1), Code::kAborted);
  EXPECT_TRUE(hosts_[0]->listener.wait_closed());
}

TEST_F(LaneTest, APeerThatGoesWhileOperationsArePendingIsAFailureThatNamesIt) {
  start(2, 1, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  hosts_[1]->lane->stop();
  hosts_[1]->lane.reset();
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(LaneTest, APeerThatHasLeftIsAFailureOnlyForWhatNeedsIt) {
  start(2, 1, {allreduce(100)});
  ASSERT_TRUE(hosts_[1]->lane->detach(kJob, Rank(1)).ok());
  EXPECT_TRUE(hosts_[1]->listener.wait_closed());
  std::this_thread::sleep_for(100ms);
  hosts_[0]->clients[0]->submit(0, 1);
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(LaneTest, ARankThatKeepsOthersWaitingIsReportedByItsOwnHost) {
  start(2, 2, {allreduce(100)}, milliseconds(300));
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[0]->clients[1]->submit(0, 1);
  hosts_[1]->clients[1]->submit(0, 1);
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(2), TensorId(0)));
}

// Host 0 has the only slice of the first tensor: nothing tells host 1 that it is waited for, unless it is asked.
TEST_F(LaneTest, AHostThatOnlySendsIsNamedAndReportsItsRankWhenAsked) {
  start(2, 1, {allreduce(100)}, milliseconds(200));
  hosts_[0]->clients[0]->submit(0, 1);
  const auto missing = hosts_[0]->listener.wait_missing();
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->peer, HostIndex(1));
  EXPECT_EQ(missing->tensor, TensorId(0));
  EXPECT_EQ(missing->sequence, Sequence(1));
  EXPECT_GE(missing->waited, milliseconds(200));
  EXPECT_LT(missing->waited, seconds(10));
  ports::LanePort& asked = *hosts_[1]->lane;
  // None of these is what is waited for.
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(3), seconds(60)).ok());
  ASSERT_TRUE(asked.awaited(kJob, TensorId(1), Sequence(1), seconds(60)).ok());
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(2), seconds(60)).ok());
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(hosts_[1]->listener.late(), 0U);
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(1), seconds(50)).ok());
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(1), TensorId(0)));
  EXPECT_GE(hosts_[1]->listener.longest_late(), seconds(50) - milliseconds(1))  // the turn began before it was asked
      << "it is late for as long as the other host waits";
  hosts_[1]->clients[0]->submit(0, 1);
  each_client([](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait(0, 1), Code::kOk); });
}

// One of them may be held there for another, and only that one is what a rank there keeps others waiting with.
TEST_F(LaneTest, AHostIsToldOfOneOperationAfterTheOtherThatIsMissed) {
  constexpr std::uint32_t kTensors = 8, kSummedHere = kTensors / 2;
  start(2, 1, std::vector(kTensors, allreduce(100)), milliseconds(200));
  for (std::uint32_t i = 0; i < kTensors; ++i) hosts_[0]->clients[0]->submit(i, 1);
  const auto told = [&] {
    std::set<std::uint32_t> tensors;
    for (const auto& missing : hosts_[0]->listener.all_missing()) tensors.insert(missing.tensor.value);
    return tensors.size();
  };
  ASSERT_TRUE(hosts_[0]->listener.wait_missing());
  const std::size_t at_first = hosts_[0]->listener.missing();
  for (int i = 0; i < 1000 && told() < kSummedHere; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(told(), kSummedHere);
  EXPECT_EQ(at_first, 1u);
  for (std::uint32_t i = 0; i < kTensors; ++i) hosts_[1]->clients[0]->submit(i, 1);
  each_client([](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait(kTensors - 1, 1), Code::kOk); });
}

// What was asked of a tensor that has gone is not asked of the one in its place, whose operations go on from its count.
TEST_F(LaneTest, WhatIsAskedOfATensorGoesWithIt) {
  start(2, 1, {allreduce(100)}, milliseconds(200));
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
  }
  ports::LanePort& asked = *hosts_[1]->lane;
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(4), seconds(60)).ok());
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(1), TensorId(0)));
  vacate({0, 1});
  const std::size_t before = hosts_[1]->listener.late();
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(4), seconds(60)).ok());  // on its way since before
  std::this_thread::sleep_for(300ms);
  place(0, {allreduce(50)}, {0});
  std::this_thread::sleep_for(700ms);
  EXPECT_EQ(hosts_[1]->listener.late(), before);
  hosts_[0]->clients[0]->submit(0, 1);
  const auto missing = hosts_[0]->listener.wait_missing();
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->sequence, Sequence(4));
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), Sequence(1), seconds(60)).ok());
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(hosts_[1]->listener.late(), before);
  ASSERT_TRUE(asked.awaited(kJob, TensorId(0), missing->sequence, missing->waited).ok());
  for (int i = 0; i < 1000 && hosts_[1]->listener.late() == before; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_GT(hosts_[1]->listener.late(), before);
  hosts_[1]->clients[0]->submit(0, 1);
  each_client([](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait(0, 1), Code::kOk); });
}

// A rank that breaks the protocol ends its job, whatever place it names; ranks and hosts that do not are not harmed.
TEST_F(LaneTest, ATensorThatHasGoneCannotBeSubmitted) {
  start(1, 2, {allreduce(100), allreduce(100)});
  vacate({0, 1});
  hosts_[0]->clients[1]->boost(0, 1);  // was under way
  each_client([](FakeClient& client, std::uint32_t) { client.submit(1, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(1, 1), Code::kOk); });
  hosts_[0]->clients[1]->submit(0, 1);
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(),
            "rank 1 submitted a tensor that it has not registered: tensor 0, sequence 1");
}

TEST_F(LaneTest, ATensorThatARankStillUsesFailsTheJobByName) {
  start(2, 2, {allreduce(100), allreduce(100)});
  hosts_[0]->clients[1]->submit(0, 1);
  for (int i = 0; i < 1000 && !hosts_[0]->clients[1]->all_taken(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(hosts_[0]->lane->vacate(kJob, 2, {0, 1}, [] { ADD_FAILURE() << "it has not gone"; }).ok());
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(),
            "rank 1 has unregistered tensor 't0' while its operation is under way");
}

// One operation at a time, and not before its time. However slow the machine: only the lane's own clock, and time that
// has passed at least, count.
TEST_F(LaneTest, AMissingHostIsSpokenOfOnceInLateAfter) {
  constexpr auto kLateAfter = 400ms;
  start(2, 1, std::vector(20, allreduce(100)), milliseconds(400));
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint32_t tensor = 0; tensor < 20; ++tensor) hosts_[0]->clients[0]->submit(tensor, 1);
  const auto first = hosts_[0]->listener.wait_missing();
  ASSERT_TRUE(first);
  EXPECT_GE(first->waited, milliseconds(400));
  for (int i = 0; i < 1000 && hosts_[0]->listener.missing() < 2; ++i) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(600ms);
  const std::size_t reports = hosts_[0]->listener.missing();
  EXPECT_GE(reports, 2U);
  // One more: the lane may have read its clock before `begin`.
  EXPECT_LE(reports, static_cast<std::size_t>((std::chrono::steady_clock::now() - begin) / kLateAfter) + 1);
}

TEST_F(LaneTest, RubbishSubmissionsFailTheJobAndNameTheRank) {
  start(1, 2, {allreduce(100)});
  hosts_[0]->clients[1]->submit(5, 1);
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(), "rank 1 submitted an unknown tensor: tensor 5, sequence 1");
}

TEST_F(LaneTest, AnOperationOutOfSequenceFailsTheJob) {
  start(1, 2, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[0]->clients[0]->submit(0, 2);
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(),
            "rank 0 submitted an operation out of sequence: tensor 0, sequence 2");
}

// Its ranks register one tensor while others are under way: nothing of an operation may refer to the old plan.
TEST_F(LaneTest, ThePlanGrowsUnderOperationsThatRun) {
  constexpr int kElements = 3'000'000;
  for (const std::size_t hosts : {1u, 2u}) {
    hosts_.clear();
    plan_ = {};
    start(hosts, 2, {allreduce(kElements)});
    each_client([](FakeClient& client, std::uint32_t rank) {
      std::fill_n(client.data<float>(0), kElements, static_cast<float>(rank + 1));
      client.submit(0, 1);
    });
    for (int i = 0; i < 40; ++i) grow_plan();
    const auto world = static_cast<std::uint32_t>(hosts * 2);
    const auto sum = static_cast<float>(world * (world + 1) / 2);
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, 1), Code::kOk);
      const float* result = client.data<float>(0);
      ASSERT_TRUE(std::all_of(result, result + kElements, [&](float value) { return value == sum; }));
    });
  }
}

// Each flow takes one operation between two polls, and send() insists on that.
TEST_F(LaneTest, GivesAFlowNoMoreThanItTakes) {
  constexpr int kElements = 500'000;
  one_at_a_time_ = true;
  protocol::PlanTensor tensor = allreduce(kElements, Dtype::kFloat32, protocol::Pattern::kParameterServer);
  start(3, 1, {tensor});
  each_client([&](FakeClient& client, std::uint32_t rank) {
    std::fill_n(client.data<float>(0), kElements, static_cast<float>(rank));
    client.submit(0, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    const float* result = client.data<float>(0);
    ASSERT_TRUE(std::all_of(result, result + kElements, [](float value) { return value == 3; }));
  });
}

// The host that both jobs share has flows of one and none of the other.
TEST_F(LaneTest, AJobOfOneHostRunsBesideOneOfTwo) {
  start(2, 1, {allreduce(100'000)});
  ports::JobSpec alone;
  alone.name = "alone";
  alone.world_size = 2;
  alone.hosts.push_back({"h0", hosts_[0]->addresses, TestHost::port(), {Rank(0), Rank(1)}});
  alone.credentials = {JobId(78), Epoch(1), HostIndex(0), {}};
  Lanes& lane = *hosts_[0]->lane;
  ASSERT_TRUE(lane.start_job(alone).ok());
  std::vector<std::shared_ptr<FakeClient>> ranks{std::make_shared<FakeClient>(), std::make_shared<FakeClient>()};
  protocol::Plan plan = plan_;
  plan.rank_hosts = {HostIndex(0), HostIndex(0)};
  ASSERT_TRUE(lane.attach(alone.credentials.job, Rank(0), ranks[0]).ok());
  ASSERT_TRUE(lane.attach(alone.credentials.job, Rank(1), ranks[1]).ok());
  put_in_force(lane, alone.credentials.job, plan);
  for (std::uint32_t r = 0; r < 2; ++r)
    ASSERT_TRUE(lane.bind(alone.credentials.job, Rank(r), TensorId(0), {0, 0, 400'000}).ok());
  barrier();
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
    for (auto& rank : ranks) rank->submit(0, sequence);
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
    for (auto& rank : ranks) ASSERT_EQ(rank->wait(0, sequence), Code::kOk);
  }
}

// A window of one operation: of the slices that are granted at once all but the first have to wait.
TEST_F(LaneTest, TellsHowLongSlicesWaitedAndWhatTheyCost) {
  constexpr std::uint64_t kElements = 200'000;
  window_ = kMaxOperation;
  protocol::PlanTensor bulk = allreduce(kElements);
  bulk.cls = ClassId(1);
  start(2, 1, {bulk});
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  for (auto& host : hosts_) {
    ASSERT_TRUE(host->listener.wait_closed());
    host->lane->stop();
    const ports::LaneMetrics& all = host->metrics();
    const ports::ClassMetrics& metrics = all.classes[1];
    std::uint64_t waits = 0;
    for (std::size_t i = 0; i < ports::DurationHistogram::kBuckets; ++i) waits += metrics.queue_wait.bucket(i);
    EXPECT_EQ(waits, metrics.operations_sent.value());
    EXPECT_GT(metrics.queue_wait.sum_ns(), 0u);
    // Contributions to one half of the tensor, results of the other.
    EXPECT_EQ(all.slices_sent.value(), 2 * ((kElements / 2 + 16383) / 16384));
    std::uint64_t bytes = 0, waited = 0, reduced = 0;
    for (const ports::TraceSpan& span : host->timeline.spans) {
      if (span.phase == ports::TraceSpan::Phase::kReduce) reduced += span.bytes;
      if (span.phase != ports::TraceSpan::Phase::kQueue) continue;
      bytes += span.bytes;
      waited += static_cast<std::uint64_t>(span.length.value);
      EXPECT_EQ(span.cls, ClassId(1));
      EXPECT_NE(span.peer, HostIndex(host == hosts_[0] ? 0 : 1));
    }
    EXPECT_EQ(bytes, metrics.bytes_sent.value());
    EXPECT_EQ(waited, metrics.queue_wait.sum_ns());
    EXPECT_EQ(reduced, all.bytes_reduced.value());
    EXPECT_GT(reduced, 0u);
  }
}

// What tells a transport operation from all others is the same at both of its ends.
TEST_F(LaneTest, TellsOfBothEndsOfAnOperation) {
  start(2, 1, {allreduce(200'000), allreduce(10)});
  for (const std::uint64_t sequence : {1, 2}) {
    each_client([&](FakeClient& client, std::uint32_t) {
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) client.submit(tensor, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) ASSERT_EQ(client.wait(tensor, sequence), Code::kOk);
    });
  }
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  using Key = std::array<std::uint64_t, 10>;
  std::set<Key> sent, received;
  std::size_t sends = 0;
  for (std::uint32_t h = 0; h < 2; ++h) {
    ASSERT_TRUE(hosts_[h]->listener.wait_closed());
    hosts_[h]->lane->stop();
    for (const ports::TraceSpan& s : hosts_[h]->timeline.spans) {
      const bool leaves = s.phase == ports::TraceSpan::Phase::kQueue;
      if (!leaves && s.phase != ports::TraceSpan::Phase::kReceive) continue;
      const std::uint64_t from = leaves ? h : s.peer.value, to = leaves ? s.peer.value : h;
      (leaves ? sent : received)
          .insert(
              {from, to, s.tensor.value, s.sequence.value, s.slice, s.offset, s.grant, s.rail.value, s.eager, s.bytes});
      sends += leaves ? 1 : 0;
      EXPECT_GE(s.length, Duration());
    }
  }
  EXPECT_EQ(sent.size(), sends) << "no two are alike";
  EXPECT_EQ(sent, received);
}

TEST_F(LaneTest, ShowsTheTagsThatTheSocketsCarry) {
  start(2, 1, {allreduce(100)});
  const std::vector<ports::FlowReport> flows = hosts_[0]->metrics().flows.all();
  ASSERT_EQ(flows.size(), 3u);  // two data classes and control
  const int dscps[] = {43, 42, 51}, pcps[] = {5, 5, 6};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(flows[i].job, "test");
    EXPECT_EQ(flows[i].peer, "h1");
    EXPECT_EQ(flows[i].cls, i == 2 ? kControlClass : ClassId(static_cast<std::uint8_t>(i)));
    EXPECT_EQ(flows[i].dscp, dscps[i]);
    EXPECT_EQ(flows[i].pcp, pcps[i]);
    EXPECT_THAT(flows[i].path, ::testing::HasSubstr(hosts_[1]->addresses[0]));
  }
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  ASSERT_TRUE(hosts_[0]->listener.wait_closed());
  EXPECT_TRUE(hosts_[0]->metrics().flows.all().empty());
}

// The client shares the description of its descriptor, and can make a read of it block: take the count away first, and
// clear O_NONBLOCK.
TEST_F(LaneTest, ReadsNoDescriptorThatItSharesWithAClient) {
  start(2, 1, {allreduce(1000)});
  constexpr std::uint64_t kRounds = 20;
  std::size_t slow = 0;
  for (std::uint64_t sequence = 1; sequence <= kRounds; ++sequence) {
    std::this_thread::sleep_for(5ms);  // the lane sleeps
    const auto begun = std::chrono::steady_clock::now();
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
    slow += std::chrono::steady_clock::now() - begun > 60ms ? 1 : 0;
  }
  EXPECT_LT(slow, kRounds / 2) << "each of them wakes it; by itself it looks every 100 ms";
  each_client([&](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.unread_wake_ups(), kRounds); });
}

// With a job that is over its clients are not looked at any more; those of others are.
TEST_F(LaneTest, IsWokenByClientsWhenAnotherJobHasEnded) {
  start(2, 1, {allreduce(1000)});
  constexpr std::uint64_t kRounds = 20;
  std::size_t slow = 0;
  for (std::uint64_t sequence = 1; sequence <= kRounds; ++sequence) {
    if (sequence == 2) {
      for (auto& host : hosts_) {
        host->listener.forget();
        ports::JobSpec other;
        other.name = "other";
        other.hosts.push_back({"h0", host->addresses, TestHost::port(), {Rank(0)}});
        other.world_size = 1;
        other.credentials = {JobId(78), Epoch(1), HostIndex(0), {}};
        ASSERT_TRUE(host->lane->start_job(other).ok());
        ASSERT_TRUE(host->listener.wait_connected());
        ASSERT_TRUE(host->lane->abort_job(JobId(78), {Code::kAborted, "enough", "", ""}).ok());
        ASSERT_TRUE(host->listener.wait_closed());
      }
    }
    std::this_thread::sleep_for(5ms);  // the lane sleeps
    const auto begun = std::chrono::steady_clock::now();
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
    slow += std::chrono::steady_clock::now() - begun > 60ms ? 1 : 0;
  }
  EXPECT_LT(slow, kRounds / 4) << "by itself it looks every 100 ms";
}

TEST_F(LaneTest, LeavesInPeace) {
  start(2, 1, {allreduce(100)});
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  for (auto& host : hosts_) EXPECT_TRUE(host->listener.wait_closed());
}

}  // namespace
}  // namespace tensorlane::lane
