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
  void on_reset(const Channel&) override {}
  std::optional<ledger::Number> on_reconnect(const Channel&) override { return std::nullopt; }
  void on_resumed(const Channel&, ledger::Number) override {}
  void on_acknowledged(const Channel&, ledger::Number) override {}
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

// ---- crowded: what Congestion does to packets; its rules have tests in tests/unit/planner/congestion_test.cc ----

TEST_F(NetworkTest, PausesHoldTheLevelAtItsSenderAndNoOther) {
  config.congestion.pauses = PauseThresholds{kib(128), kib(64), ~1u};
  build();
  network->scale_downlink(HostIndex(2), 0.01);
  for (std::uint32_t i = 0; i < 20; ++i) send(0, 2, ClassId(1), i, 65'536);
  // The victim goes elsewhere, in the same class; the other one does not wait.
  events.at(Time(20'000'000), [&] {
    send(0, 1, ClassId(1), 100, 65'536);
    send(0, 1, ClassId(0), 101, 65'536);
  });
  drain();
  EXPECT_EQ(numbers(2).size(), 20u);
  EXPECT_GT(network->congestion().pauses, 0u);
  EXPECT_EQ(network->lost(), 0u);
  ASSERT_EQ(numbers(1), (std::vector<std::uint32_t>{101, 100}));
  EXPECT_LT(sinks[1].frames[0].first.value, 22'000'000);
  // The switch holds two or three packets; the others leave at a hundredth of the rate, 52 ms each, before the victim.
  EXPECT_GT(sinks[1].frames[1].first.value, 16 * 52'000'000);
}

TEST_F(NetworkTest, AFullSharedBufferCostsARetransmission) {
  config.congestion.buffer = SharedBuffer{.size = kib(256), .alpha = 1};
  build();
  for (std::uint32_t i = 0; i < 20; ++i) {
    send(0, 2, ClassId(0), i, 65'536);
    send(1, 2, ClassId(0), 100 + i, 65'536);
  }
  drain();
  EXPECT_GT(network->congestion().refused, 0u);
  EXPECT_EQ(network->overflowed(), network->congestion().refused);
  EXPECT_EQ(numbers(2).size(), 40u);
}

TEST_F(NetworkTest, MarksSlowTheSenderAndKeepTheQueueShort) {
  // When a frame of another flow, sent at 20 ms, has passed the same queue.
  const auto probe_at = [this](bool marks) {
    events = EventQueue();
    config = {};
    sinks = {};
    if (marks) config.congestion.marking = Marking{.k_min = kib(64), .k_max = kib(256), .p_max = 0.5};
    config.packet = kib(4);  // short beside DCQCN's timers
    config.hosts.resize(3);
    config.hosts[2].downlink.policy = Policy::kFifo;
    build();
    // A third more than the receiver's link carries: 2 x 65,536 bytes in 0.8 ms.
    for (std::uint32_t i = 0; i < 40; ++i) {
      events.at(Time(800'000 * i), [this, i] {
        send(0, 2, ClassId(1), i, 65'536);
        send(1, 2, ClassId(1), 100 + i, 65'536);
      });
    }
    events.at(Time(20'000'000), [this] { send(1, 2, ClassId(0), 999, 1000); });
    drain();
    EXPECT_EQ(numbers(2).size(), 81u);
    for (const auto& [time, number] : sinks[2].frames) {
      if (number == 999) return static_cast<double>(time.value) / 1e6;
    }
    return 0.0;
  };
  // 25 x 131 KB have come by then, and 125 KB/ms have left: 0.78 MB wait, which take 6.2 ms.
  EXPECT_NEAR(probe_at(false), 26.2, 0.3);
  EXPECT_EQ(network->congestion().notified, 0u);
  // From 256 KiB, or 2.1 ms, on every packet is marked; what the senders' NICs have taken by then still comes.
  EXPECT_LT(probe_at(true), 23.5);
  EXPECT_GT(network->congestion().notified, 2u);
}

TEST_F(NetworkTest, OthersTakeTheirShareAndEnd) {
  const auto done_at = [this](std::size_t level) {
    events = EventQueue();
    config = {};
    sinks = {};
    config.congestion.foreign_burst = kib(128);
    config.congestion.foreign_gap = milliseconds(1);
    config.congestion.foreign_until = Time(40'000'000);
    config.congestion.foreign_level = level;
    config.packet = kib(4);
    build();
    for (std::uint32_t i = 0; i < 32; ++i) send(0, 2, ClassId(0), i, 65'536);
    drain();
    EXPECT_GT(network->congestion().foreign, 0u);
    return sinks[2].frames.back().first.value;
  };
  // 2 MiB at 1 Gbit/s are 16.8 ms; a third of 131 KB per ms is for this host, in the class or below it.
  EXPECT_NEAR(static_cast<double>(done_at(kLevels - 1)), 16.8e6, 0.5e6);
  EXPECT_GT(done_at(level_of(ClassId(0))), 18'000'000);
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
  const std::vector<std::byte> memory(1000);
  const std::span<const std::byte> staging = memory;
  Findings findings;
  StagingChecker checker(HostIndex(0), staging, findings);
  checker.landing(staging.subspan(0, 100));
  checker.consumed(staging.subspan(0, 50));
  checker.landing(staging.subspan(0, 50));
  EXPECT_FALSE(findings.any());
  EXPECT_EQ(checker.held(), 100u);
  checker.landing(staging.subspan(90, 20));
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
    Urgencies urgencies(s);
    OrderChecker checker(HostIndex(0), s, urgencies, limits, findings);
    checker.stepped(Time(1), grant(0, 5), std::nullopt);
    checker.stepped(Time(2), grant(1, 6), std::nullopt);
    const std::array<engine::Send, 2> sends =
        right ? std::array{data(0, 5), data(1, 6)} : std::array{data(1, 6), data(0, 5)};
    checker.picked(Time(3), flow, sends);
    EXPECT_EQ(findings.any(), !right);
  }
}

TEST(ChoiceChecker, WantsTheTensorThatIsWaitedForToBeSummedFirst) {
  Scenario s = quiet_scenario(2);
  s.engine.classes = 1;
  for (int i = 0; i < 2; ++i)
    add_tensor(s, Operation::kAllreduce, 100, ClassId(0)).pattern = protocol::Pattern::kWholeServer;  // on host 0
  using Kind = engine::Event::Kind;
  for (const std::uint32_t first : {0u, 1u}) {
    Findings findings;
    Urgencies urgencies(s);
    ChoiceChecker checker(HostIndex(0), RailIndex(0), s, urgencies, findings);
    const auto step = [&](const engine::Event& event) {
      checker.stepped(Time(1), event, urgencies.stepped(Time(1), event));
    };
    for (const std::uint32_t id : {0u, 1u}) {
      step({.kind = Kind::kTensorReady, .tensor_ready = {TensorId(id), Sequence(1), {id + 1, 1, 0, 400}, {}}});
      engine::Event eager{.kind = Kind::kFrameArrived};
      eager.frame = {HostIndex(1),
                     {.flags = protocol::kFlagEager, .grant = id + 1, .tensor = TensorId(id), .sequence = Sequence(1)}};
      step(eager);
    }
    step({.kind = Kind::kBoost, .boost = {TensorId(1), Sequence(1)}});
    EXPECT_EQ(checker.next_work(), ClassId(0));
    engine::Work work;
    work.out = {first + 1, 1, 0, 400};
    work.elements = 100;
    work.tensor = TensorId(first);
    work.sequence = Sequence(1);
    checker.working(work);
    EXPECT_EQ(findings.any(), first != 1);
  }
}

TEST(ChoiceChecker, RefusesASumBeforeAllHasCome) {
  Scenario s = quiet_scenario(2);
  add_tensor(s, Operation::kAllreduce, 100, ClassId(0)).pattern = protocol::Pattern::kWholeServer;
  Findings findings;
  Urgencies urgencies(s);
  ChoiceChecker checker(HostIndex(0), RailIndex(0), s, urgencies, findings);
  engine::Event ready{.kind = engine::Event::Kind::kTensorReady};
  ready.tensor_ready = {TensorId(0), Sequence(1), {1, 1, 0, 400}, {}};
  checker.stepped(Time(1), ready, urgencies.stepped(Time(1), ready));
  EXPECT_FALSE(checker.next_work());
  engine::Work work;
  work.out = {1, 1, 0, 400};
  work.elements = 100;
  checker.working(work);
  EXPECT_TRUE(findings.any());
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
    Urgencies urgencies(s);
    OrderChecker checker(HostIndex(0), s, urgencies, limits, findings);
    checker.stepped(Time(10), grant, std::nullopt);
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
