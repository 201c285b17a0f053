// The parts of the simulator: a checker that lets something pass is worth nothing, so each is shown what it must
// refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "simulator/host/numbers.h"
#include "tests/simulation/scenarios.h"

namespace tensorlane::simulator {
namespace {

TEST(EventQueue, RunsByTimeAndTiesByInsertion) {
  EventQueue events;
  std::vector<int> order;
  events.at(Time(20), [&] { order.push_back(3); });
  events.at(Time(10), [&] { order.push_back(1); });
  events.at(Time(10), [&] {
    order.push_back(2);
    events.after(Duration(5), [&] { order.push_back(25); });
  });
  while (events.run_next()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 25, 3}));
  EXPECT_EQ(events.now(), Time(20));
}

TEST(Random, IsTheSameEverywhere) {
  Random random(42);
  const std::uint64_t first = random.next();
  EXPECT_EQ(Random(42).next(), first);
  EXPECT_NE(Random(43).next(), first);
  for (int i = 0; i < 1000; ++i) EXPECT_LE(random.between(3, 5) - 3, 2u);
}

TEST(Numbers, HalfRoundsToNearestEven) {
  EXPECT_EQ(float_to_half(1.0f), 0x3c00);
  EXPECT_EQ(float_to_half(-2.0f), 0xc000);
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);      // a tie
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie
  EXPECT_EQ(float_to_half(std::ldexp(1.0f, -24)), 0x0001);
  EXPECT_EQ(float_to_half(std::ldexp(1.0f, -14)), 0x0400);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::numeric_limits<float>::quiet_NaN()))));
  for (std::uint32_t h = 0; h < 0x7c00; ++h) {
    ASSERT_EQ(float_to_half(half_to_float(static_cast<std::uint16_t>(h))), h);
  }
}

TEST(Numbers, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bfloat16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Memory, KnowsItsBoundsGenerationsAndCanaries) {
  SimMemory memory;
  const Descriptor d = memory.allocate(100);
  EXPECT_EQ(memory.resolve(d).size(), 100u);
  EXPECT_TRUE(memory.resolve(d.slice(50, 51)).empty());
  EXPECT_EQ(memory.broken_canary(), -1);
  memory.resolve(d).data()[100] = std::byte{1};
  EXPECT_EQ(memory.broken_canary(), 0);
  memory.remove(d.region);
  EXPECT_TRUE(memory.resolve(d).empty());
}

struct Arrivals : NetworkSink {
  EventQueue* events;
  std::vector<std::pair<Time, std::uint32_t>> frames;  // slice of the header, when complete
  int acknowledged = 0, beats = 0;
  void on_packet(const Packet& p) override {
    if (p.last) frames.emplace_back(events->now(), p.frame->header.slice);
  }
  void on_arrived(const FramePtr&) override {}
  void on_acknowledged(const FramePtr&) override { ++acknowledged; }
  void on_heartbeat(HostIndex, const Heartbeat&) override { ++beats; }
  void on_reset(HostIndex, std::size_t) override {}
  std::optional<ledger::Number> on_reconnect(HostIndex, std::size_t) override { return std::nullopt; }
  void on_resumed(HostIndex, std::size_t, ledger::Number) override {}
  void on_told(HostIndex, std::size_t, ledger::Number) override {}
};

struct NetworkTest : testing::Test {
  NetworkConfig config;
  EventQueue events;
  std::array<Arrivals, 3> sinks;
  std::unique_ptr<Network> network;

  void build() {
    config.hosts.resize(3);
    network = std::make_unique<Network>(events, config, Random(1));
    for (std::uint16_t h = 0; h < 3; ++h) {
      sinks[h].events = &events;
      network->attach(HostIndex(h), &sinks[h]);
    }
  }
  void send(std::uint16_t from, std::uint16_t to, ClassId cls, std::uint32_t number, std::size_t bytes) {
    auto frame = std::make_shared<Frame>();
    frame->from = HostIndex(from);
    frame->to = HostIndex(to);
    frame->cls = cls;
    frame->header.slice = number;
    frame->payload.resize(bytes);
    network->send(frame);
  }
  std::vector<std::uint32_t> numbers(int host) const {
    std::vector<std::uint32_t> n;
    for (const auto& [time, number] : sinks[static_cast<std::size_t>(host)].frames) n.push_back(number);
    return n;
  }
  void drain() {
    while (events.run_next()) {
    }
  }
};

TEST_F(NetworkTest, CarriesAtTheRateOfThePort) {
  build();
  send(0, 1, ClassId(0), 1, 250'000);
  drain();
  // Twice 64 KiB packets at 1 Gbit/s: 2 ms for the whole, one packet's time more for the second port, and two cables.
  ASSERT_EQ(sinks[1].frames.size(), 1u);
  EXPECT_NEAR(static_cast<double>(sinks[1].frames[0].first.value), 2'000'000 + 53'000 * 8 + 4'000, 110'000);
  EXPECT_EQ(sinks[0].acknowledged, 1);
}

TEST_F(NetworkTest, StrictPortsServeUrgentFirst) {
  build();
  for (std::uint32_t i = 0; i < 4; ++i) send(0, 2, ClassId(1), i, 200'000);
  events.at(Time(2'500'000), [&] { send(1, 2, ClassId(0), 99, 60'000); });
  drain();
  EXPECT_EQ(numbers(2), (std::vector<std::uint32_t>{0, 99, 1, 2, 3}));
}

TEST_F(NetworkTest, LossKeepsTheOrderOfAFlow) {
  config.loss = 0.3;
  config.packet = kib(4);
  build();
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 50; ++i) {
    send(0, 1, ClassId(0), i, 10'000);
    expected.push_back(i);
  }
  drain();
  EXPECT_EQ(numbers(1), expected);
  EXPECT_EQ(sinks[0].acknowledged, 50);
  EXPECT_GT(network->lost(), 10u);
}

TEST_F(NetworkTest, FullBuffersDropAndRecover) {
  for (int i = 0; i < 3; ++i) config.hosts.emplace_back().downlink.buffer = kib(128);
  build();
  for (std::uint32_t i = 0; i < 10; ++i) {
    send(0, 2, ClassId(0), i, 200'000);
    send(1, 2, ClassId(0), 100 + i, 200'000);
  }
  drain();
  EXPECT_GT(network->overflowed(), 0u);
  EXPECT_EQ(sinks[2].frames.size(), 20u);
}

TEST_F(NetworkTest, CutIsOneDirectionAndHeals) {
  build();
  network->set_cut(HostIndex(0), HostIndex(1), true);
  send(0, 1, ClassId(0), 1, 100);
  send(1, 0, ClassId(0), 2, 100);
  network->send(HostIndex(0), HostIndex(1), Heartbeat{});
  events.at(Time(10'000'000), [&] {
    EXPECT_TRUE(sinks[1].frames.empty());
    EXPECT_EQ(sinks[0].frames.size(), 1u);
    EXPECT_EQ(sinks[1].acknowledged, 0) << "the acknowledgement travels the cut direction";
    network->set_cut(HostIndex(0), HostIndex(1), false);
  });
  drain();
  EXPECT_EQ(sinks[1].frames.size(), 1u);
  EXPECT_EQ(sinks[1].acknowledged, 1);
  EXPECT_EQ(sinks[1].beats, 0) << "heartbeats are not sent again";
}

TEST(DeliveryChecker, RefusesWhatComesTwiceOrIsMissing) {
  Scenario s = quiet_scenario(2);
  add_tensor(s, Operation::kBroadcast, 10, ClassId(0));
  Frame frame;
  frame.to = HostIndex(1);
  frame.header.sequence = Sequence(1);
  frame.header.payload_bytes = 40;
  {
    Findings findings;
    DeliveryChecker checker(s, findings);
    checker.landed(frame, false);
    checker.completed(TensorId(0), Sequence(1));
    checker.completed(TensorId(0), Sequence(1));
    EXPECT_FALSE(findings.any());
  }
  {
    Findings findings;
    DeliveryChecker checker(s, findings);
    checker.landed(frame, false);
    checker.landed(frame, false);
    ASSERT_TRUE(findings.any());
    EXPECT_EQ(findings.first()->checker, "delivery");
  }
  {
    Findings findings;
    DeliveryChecker checker(s, findings);
    checker.completed(TensorId(0), Sequence(1));
    checker.completed(TensorId(0), Sequence(1));
    EXPECT_TRUE(findings.any());
  }
}

TEST(StagingChecker, RefusesToLandOnWhatIsNotSummed) {
  const Descriptor staging{3, 1, 0, 1000};
  Findings findings;
  StagingChecker checker(HostIndex(0), staging, findings);
  checker.landing(staging.slice(0, 100));
  checker.consumed(staging.slice(0, 50));
  checker.landing(staging.slice(0, 50));
  EXPECT_FALSE(findings.any());
  EXPECT_EQ(checker.held(), 100u);
  checker.landing(staging.slice(90, 20));
  EXPECT_TRUE(findings.any());
}

TEST(OrderChecker, RefusesALessUrgentSendBeforeAGrantedUrgentOne) {
  Scenario s = quiet_scenario(2);
  add_tensor(s, Operation::kAllreduce, 100, ClassId(0)).urgency = 0.8f;
  add_tensor(s, Operation::kAllreduce, 100, ClassId(0)).urgency = 0.6f;
  const auto grant = [](std::uint32_t tensor, std::uint32_t id) {
    engine::Event e{.kind = engine::Event::Kind::kFrameArrived};
    e.frame.peer = HostIndex(1);
    e.frame.header = {
        .type = protocol::FrameType::kGrant, .grant = id, .tensor = TensorId(tensor), .sequence = Sequence(1)};
    return e;
  };
  const auto data = [](std::uint32_t tensor, std::uint32_t id) {
    engine::Send send;
    send.header = {.grant = id, .tensor = TensorId(tensor), .sequence = Sequence(1)};
    send.eligible = Time(1 + tensor);
    return send;
  };
  const engine::Flow flow{HostIndex(1), ClassId(0)};
  for (const bool right : {true, false}) {
    Findings findings;
    LimitChecker limits(HostIndex(0), s, findings);
    OrderChecker checker(HostIndex(0), s, limits, findings);
    checker.stepped(Time(1), grant(0, 5));
    checker.stepped(Time(2), grant(1, 6));
    const std::array<engine::Send, 2> sends =
        right ? std::array{data(0, 5), data(1, 6)} : std::array{data(1, 6), data(0, 5)};
    checker.picked(Time(3), flow, sends);
    EXPECT_EQ(findings.any(), !right);
  }
}

TEST(OrderChecker, RefusesAWaitThatBeginsAtAnotherTimeThanTheGrant) {
  Scenario s = quiet_scenario(2);
  add_tensor(s, Operation::kAllreduce, 100, ClassId(0));
  engine::Event grant{.kind = engine::Event::Kind::kFrameArrived};
  grant.frame.peer = HostIndex(1);
  grant.frame.header = {
      .type = protocol::FrameType::kGrant, .grant = 5, .tensor = TensorId(0), .sequence = Sequence(1)};
  engine::Send send{.header = {.grant = 5, .tensor = TensorId(0), .sequence = Sequence(1)}};
  for (const std::int64_t since : {9, 10, 11, 21}) {
    Findings findings;
    LimitChecker limits(HostIndex(0), s, findings);
    OrderChecker checker(HostIndex(0), s, limits, findings);
    checker.stepped(Time(10), grant);
    send.eligible = Time(since);
    checker.picked(Time(20), {HostIndex(1), ClassId(0)}, {&send, 1});
    EXPECT_EQ(findings.any(), since != 10) << since;
  }
}

// A burst of 100 bytes, and one byte in a millisecond.
TEST(LimitChecker, FindsTooMuchAndNeedlessDemotion) {
  Scenario s = quiet_scenario(2);
  s.engine.limits[0] = {BitsPerSecond(8000), Bytes(100)};
  Findings findings;
  LimitChecker checker(HostIndex(0), s, findings);
  checker.sent(Time(0), ClassId(0), ClassId(0), 99);
  checker.sent(Time(0), ClassId(0), ClassId(0), 51);  // the operation that uses it up
  EXPECT_EQ(checker.travels(Time(0), ClassId(0)), ClassId(1));
  checker.sent(Time(0), ClassId(0), ClassId(1), 1000);
  EXPECT_EQ(checker.travels(Time(50'000'000), ClassId(0)), ClassId(1));
  EXPECT_EQ(checker.travels(Time(50'000'001), ClassId(0)), ClassId(0));
  EXPECT_FALSE(findings.any());
  checker.sent(Time(50'000'000), ClassId(0), ClassId(0), 1);
  EXPECT_TRUE(findings.any());
  Findings needless;
  LimitChecker other(HostIndex(0), s, needless);
  other.sent(Time(0), ClassId(0), ClassId(1), 1);
  EXPECT_TRUE(needless.any());
}

TEST(Values, OrderOfSummationShows) {
  Scenario s = quiet_scenario(3);
  auto& t = add_tensor(s, Operation::kAllreduce, 5000, ClassId(0));
  t.pattern = protocol::Pattern::kRing;
  const auto ring = Values(s).expected(t, Sequence(1));
  t.pattern = protocol::Pattern::kParameterServer;
  EXPECT_NE(Values(s).expected(t, Sequence(1)), ring) << "else a wrong order of summation would never be found";
  EXPECT_NE(Values(s).expected(t, Sequence(2)), ring);
}

}  // namespace
}  // namespace tensorlane::simulator
