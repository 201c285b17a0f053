// The planner's network where it is crowded: shared buffers, ECN with DCQCN's reaction, pauses that spread, and the
// traffic of others. Expected numbers follow from the published rules, next to each test.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "simulator/network/fabric_network.h"
#include "simulator/network/foreign_traffic.h"

namespace tensorlane::simulator {
namespace {

constexpr BitsPerSecond kLink{10'000'000'000};
constexpr std::uint8_t kUrgent = 1, kBulk = 2;

// Counts what arrives, by sender and level; and keeps a flow filled where it is told to.
class Counter final : public FabricSink {
 public:
  Counter(EventQueue& events, FabricNetwork& network) : events_(events), network_(network) {}
  void on_delivered(const Message& m) override {
    bytes[m.from.value][m.level] += m.header.payload_bytes;
    last = events_.now();
    tokens.push_back(m.token);
  }
  void on_acknowledged(const Message& m) override {
    if (refills) network_.send(m);
  }
  std::array<std::array<std::uint64_t, kLevels>, 8> bytes{};
  std::vector<std::uint64_t> tokens;
  Time last;
  bool refills = false;

 private:
  EventQueue& events_;
  FabricNetwork& network_;
};

class CongestionTest : public testing::Test {
 protected:
  void build(const Topology& topology, FabricNetworkOptions options) {
    options.header_bytes = 0;
    if (options.train == kMaxOperation) options.train = Bytes(4096);
    sinks.clear();
    events = EventQueue();
    network = std::make_unique<FabricNetwork>(events, topology, options);
    for (std::uint16_t h = 0; h < topology.hosts; ++h) {
      sinks.push_back(std::make_unique<Counter>(events, *network));
      network->attach(HostIndex(h), sinks.back().get());
    }
  }
  void send(std::uint16_t from, std::uint16_t to, std::uint8_t level, std::uint32_t bytes, std::uint64_t token = 1) {
    Message m{.from = HostIndex(from), .to = HostIndex(to), .level = level};
    m.header.payload_bytes = bytes;
    m.token = token;
    network->send(m);
  }
  // `operations` of 64 KiB under way at any time.
  void fill(std::uint16_t from, std::uint16_t to, std::uint8_t level, int operations) {
    sinks[from]->refills = true;
    for (int i = 0; i < operations; ++i) send(from, to, level, 65'536);
  }
  void run_until(Duration end) {
    bool ended = false;
    events.at(Time(end.value), [&] { ended = true; });
    while (!ended && events.run_next()) {
    }
  }
  void run() {
    while (events.run_next()) {
    }
  }
  std::uint64_t pauses() const {
    std::uint64_t sum = 0;
    for (const auto& port : network->counters()) sum += port.pauses;
    return sum;
  }
  EventQueue events;
  std::unique_ptr<FabricNetwork> network;
  std::vector<std::unique_ptr<Counter>> sinks;
};

// ---- DCQCN's rates ----

constexpr DcqcnParameters kDcqcn;
constexpr double kGbps = 1e9;

// Equation 1 with alpha = 1: the first notification halves the rate; alpha stays 1. One after 5 quiet intervals finds
// alpha = (255/256)^5.
TEST(DcqcnRate, IsCutByHalfOfAlpha) {
  DcqcnRate flow(kLink);
  flow.notified(Time(0), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.rate(Time(1), kDcqcn), 5 * kGbps);
  EXPECT_DOUBLE_EQ(flow.alpha(), 1);
  const double before = flow.rate(Time(276'000), kDcqcn), alpha = flow.alpha();
  EXPECT_NEAR(alpha, std::pow(255.0 / 256, 5), 1e-12);
  flow.notified(Time(276'000), kDcqcn);
  EXPECT_NEAR(flow.rate(Time(276'000), kDcqcn), before * (1 - alpha / 2), 1);
  EXPECT_NEAR(flow.alpha(), alpha * 255 / 256 + 1.0 / 256, 1e-12);
}

// Fast recovery: five increases by the timer, each half of the way to the target (equation 3): 5 Gbit/s become
// 10 - 5/2^5. The target is the line's rate, so that afterwards there is nothing to add.
TEST(DcqcnRate, RecoversHalfOfTheWayEachTime) {
  DcqcnRate flow(kLink);
  flow.notified(Time(0), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.rate(Time(55'000), kDcqcn), 7.5 * kGbps);
  EXPECT_DOUBLE_EQ(flow.rate(Time(5 * 55'000), kDcqcn), (10 - 5.0 / 32) * kGbps);
  // Ten halvings are nearer than a thousandth.
  EXPECT_TRUE(flow.limited());
  EXPECT_DOUBLE_EQ(flow.rate(Time(13 * 55'000), kDcqcn), 10 * kGbps);
  EXPECT_FALSE(flow.limited());
}

// Two cuts at once: 2.5 Gbit/s, target 5. Five timers of fast recovery, then 40 Mbit/s more of the target each
// (equation 4). When the byte counter has also passed five, hyper increase: i times 200 Mbit/s.
TEST(DcqcnRate, IncreasesBySteps) {
  DcqcnRate flow(kLink);
  flow.notified(Time(0), kDcqcn);
  flow.notified(Time(0), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.target(), 5 * kGbps);
  flow.rate(Time(5 * 55'000), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.target(), 5 * kGbps) << "fast recovery leaves it";
  flow.rate(Time(7 * 55'000), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.target(), 5.08 * kGbps) << "two additive steps";
  flow.sent(Time(7 * 55'000), Bytes(50'000'000), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.target(), 5.28 * kGbps) << "five more of them by the byte counter";
  flow.sent(Time(7 * 55'000), Bytes(20'000'000), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.target(), 5.28 * kGbps + (1 + 2) * 0.2 * kGbps) << "both counters are beyond five by 1, then 2";
}

TEST(DcqcnRate, NeverFallsBelowTheLeast) {
  DcqcnRate flow(kLink);
  for (int i = 0; i < 100; ++i) flow.notified(Time(0), kDcqcn);
  EXPECT_DOUBLE_EQ(flow.rate(Time(0), kDcqcn), 10e6);
}

// ---- marks and memory ----

// Figure 5, for one packet; of four one is marked unless none is.
TEST(Marking, GrowsBetweenItsThresholds) {
  const Marking m{.k_min = Bytes(20'000), .k_max = Bytes(200'000), .p_max = 0.1};
  EXPECT_EQ(mark_probability(m, 20'000, 1024), 0);
  EXPECT_NEAR(mark_probability(m, 110'000, 1024), 0.05, 1e-12);
  EXPECT_NEAR(mark_probability(m, 110'000, 4096), 1 - std::pow(0.95, 4), 1e-12);
  EXPECT_EQ(mark_probability(m, 200'000, 1), 1);
}

// 1,000 bytes, alpha 1. The second link is stopped when its 400 are more than the 200 that are free, and lets go on
// when the first one's 400 leave, though nothing of its own has: 600 are free then, and 400 are less by 100 and more.
TEST(SwitchMemory, WhatLeavesMakesRoomForEveryLink) {
  using Verdict = SwitchMemory::Verdict;
  SwitchMemory memory(star(3, kLink, Duration()), SharedBuffer{.size = Bytes(1000), .alpha = 1},
                      PauseThresholds{Bytes(1000), Bytes(900), ~1u});
  constexpr std::uint32_t kFirst = 0, kSecond = 2;  // ports of hosts 0 and 1
  EXPECT_EQ(memory.take(kFirst, 1, 400, 0), Verdict::kKept);
  EXPECT_EQ(memory.take(kSecond, 1, 300, 0), Verdict::kKept);
  EXPECT_EQ(memory.take(kSecond, 1, 100, 0), Verdict::kKeptAndPause);
  EXPECT_EQ(memory.take(kSecond, 1, 50, 0), Verdict::kKept) << "in headroom, and it is paused already";
  EXPECT_EQ(memory.peak_headroom(), 50u);
  EXPECT_EQ(memory.take(kFirst, 0, 100, 200), Verdict::kRefused) << "control is lossy here, its queue has all it may";
  const std::vector<SwitchMemory::Resumed>& resumed = memory.give(kFirst, 1, 400);
  ASSERT_EQ(resumed.size(), 1u);
  EXPECT_EQ(resumed[0].ingress, kSecond);
  EXPECT_EQ(resumed[0].level, 1u);
}

// ---- DCQCN in the network ----

// The marking of the paper's figure 14, for 10 Gbit/s: a quarter of its 40.
Marking marking() {
  return {.k_min = Bytes(20'000), .k_max = Bytes(200'000), .p_max = 0.1, .reaction = {}};
}

struct Shares {
  double first = 0, second = 0;  // Gbit/s that arrived, after the start
  std::uint64_t peak = 0, late_peak = 0, pauses = 0, notified = 0;
};

// DCQCN, section 5.2: two senders share one receiver's link evenly and fill it, and the queue stays by the thresholds;
// without marks it grows until the switch pauses both. The second sender starts 10 ms late, when the first has it all.
TEST_F(CongestionTest, TwoFlowsConvergeToEqualShares) {
  const auto shares = [this](bool marks) {
    FabricNetworkOptions options;
    options.flow_control = PauseThresholds{Bytes(600'000), Bytes(500'000)};
    if (marks) options.marking = marking();
    build(star(3, kLink, microseconds(1)), options);
    fill(0, 2, kBulk, 32);
    events.at(Time(10'000'000), [this] { fill(1, 2, kBulk, 32); });
    run_until(milliseconds(100));
    const std::uint64_t first = sinks[2]->bytes[0][kBulk], second = sinks[2]->bytes[1][kBulk];
    run_until(milliseconds(300));
    Shares s;
    s.first = static_cast<double>(sinks[2]->bytes[0][kBulk] - first) * 8 / 0.2 / kGbps;
    s.second = static_cast<double>(sinks[2]->bytes[1][kBulk] - second) * 8 / 0.2 / kGbps;
    s.peak = network->counters()[5].peak_bytes;  // the switch's port to host 2
    s.pauses = pauses();
    s.notified = network->totals().notified;
    return s;
  };
  const Shares with = shares(true);
  EXPECT_NEAR(with.first, 5, 0.5);
  EXPECT_NEAR(with.second, 5, 0.5);
  EXPECT_GT(with.first + with.second, 9.3);
  EXPECT_EQ(with.pauses, 0u);
  EXPECT_GT(with.notified, 100u);
  // Beyond k_max every train is marked; until the rate is cut a round trip and a notification interval later two
  // senders fill the queue at their surplus of at most 10 Gbit/s: 60 us are 75,000 bytes.
  EXPECT_LT(with.peak, 200'000u + 75'000u + 2 * 4096u);
  const Shares without = shares(false);
  EXPECT_GT(without.pauses, 100u);
  EXPECT_EQ(without.notified, 0u);
  EXPECT_GT(without.peak, 1'000'000u) << "600,000 bytes by each of the two links";
}

// ---- pauses ----

// Hosts 0, 1 and 2 at the first switch, 3 and 4 at the second, one link in between.
Topology two_switches(BitsPerSecond between) {
  Topology t{.hosts = 5, .nodes = 7};
  for (NodeIndex h = 0; h < 5; ++h) t.cables.push_back({h, h < 3 ? 5u : 6u, kLink, microseconds(1)});
  t.cables.push_back({5, 6, between, microseconds(1)});
  return t;
}

// Hosts 0 and 1 crowd host 4's link together with host 3; the second switch pauses the link between the switches, then
// the first one its hosts. Host 2's flow to host 3, whose link is idle, is stopped with them in the same level ("victim
// flow", DCQCN, figure 4b), and not in another.
TEST_F(CongestionTest, PausesSpreadHopByHopWithinTheirLevel) {
  const auto victim_gbps = [this](std::uint8_t level, std::optional<PauseThresholds> pauses) {
    FabricNetworkOptions options{.discipline = Discipline::kStrict, .flow_control = pauses};
    // Twice a host's rate between the switches: it is never what is short.
    build(two_switches(BitsPerSecond(40'000'000'000)), options);
    for (const std::uint16_t from : {0, 1, 3}) fill(from, 4, kBulk, 64);
    run_until(milliseconds(5));
    fill(2, 3, level, 64);
    run_until(milliseconds(25));
    return static_cast<double>(sinks[3]->bytes[2][level]) * 8 / 0.02 / kGbps;
  };
  EXPECT_GT(victim_gbps(kBulk, std::nullopt), 9.5) << "nothing is paused, its way is free";
  const PauseThresholds thresholds{Bytes(100'000), Bytes(90'000)};
  EXPECT_GT(victim_gbps(kUrgent, thresholds), 9.5);
  // Three links crowd host 4's. What comes by the link between the switches is paused alike with host 3's: each gets
  // half of 10 Gbit/s; the victim shares the first half with two other hosts, so that it gets about 5/3 Gbit/s or, as
  // its trains leave the second switch at once and count no longer, at most that half for itself.
  const double same = victim_gbps(kBulk, thresholds);
  EXPECT_LT(same, 5.0);
  EXPECT_GT(same, 0.5);
  const auto ports = network->counters();
  EXPECT_GT(ports[10].pauses, 10u) << "the link between the switches";
  for (const std::size_t host : {0u, 1u, 2u}) EXPECT_GT(ports[2 * host].pauses, 10u) << "host " << host;
}

// What arrives after a pause was decided is what was sent in the delay there and on the way back, 2 x 10 us at
// 10 Gbit/s = 25,000 bytes, and the trains being sent at both ends of it; what leaves meanwhile, at a tenth of the
// rate, hardly counts. Enough headroom loses nothing, half of it does, and what was lost comes again.
TEST_F(CongestionTest, HeadroomHoldsWhatIsOnItsWay) {
  const auto refused = [this](std::uint64_t headroom) {
    FabricNetworkOptions options;
    options.flow_control = PauseThresholds{Bytes(300'000), Bytes(292'000)};
    options.buffer = SharedBuffer{.size = Bytes(1'000'000), .alpha = 0.5, .headroom = Bytes(headroom)};
    Topology slow = star(3, kLink, microseconds(10));
    slow.cables[2].rate = BitsPerSecond(1'000'000'000);
    build(slow, options);
    for (int i = 0; i < 100; ++i) {
      send(0, 2, kBulk, 65'536, 1000 + static_cast<std::uint64_t>(i));
      send(1, 2, kBulk, 65'536, 2000 + static_cast<std::uint64_t>(i));
    }
    run();
    EXPECT_EQ(sinks[2]->tokens.size(), 200u) << "everything arrives";
    EXPECT_LE(network->totals().peak_headroom, headroom);
    return network->totals().refused;
  };
  EXPECT_EQ(refused(25'000 + 2 * 4096), 0u);
  EXPECT_GT(network->totals().peak_headroom, 20'000u) << "and it is needed";
  EXPECT_GT(refused(12'500), 0u);
}

// ---- shared buffers ----

// Choudhury and Hahne, equation 5: n full queues hold alpha B / (1 + n alpha) each and leave B / (1 + n alpha) free.
TEST_F(CongestionTest, QueuesShareABufferByDynamicThresholds) {
  constexpr double kBuffer = 600'000;
  const auto peak = [this](double alpha, int receivers) {
    FabricNetworkOptions options;
    options.buffer = SharedBuffer{.size = Bytes(600'000), .alpha = alpha};
    build(star(6, kLink, microseconds(1)), options);
    for (int r = 0; r < receivers; ++r) {
      for (std::uint16_t from = 0; from < 4; ++from) {
        for (int i = 0; i < 40; ++i) send(from, static_cast<std::uint16_t>(4 + r), kBulk, 65'536);
      }
    }
    run();
    EXPECT_GT(network->totals().refused, 0u);
    for (int r = 0; r < receivers; ++r) {
      const auto& bytes = sinks[static_cast<std::size_t>(4 + r)]->bytes;
      for (std::size_t from = 0; from < 4; ++from) EXPECT_EQ(bytes[from][kBulk], 40u * 65'536) << "sent again";
    }
    return static_cast<double>(network->totals().peak_bytes);
  };
  // Each may pass its threshold by the train that it just admits, and one is leaving.
  EXPECT_NEAR(peak(1, 1), kBuffer / 2, 2 * 4096);
  EXPECT_NEAR(peak(1, 2), kBuffer * 2 / 3, 4 * 4096);
  EXPECT_NEAR(peak(0.25, 1), kBuffer / 5, 2 * 4096);
  EXPECT_NEAR(peak(8, 2), kBuffer * 16 / 17, 4 * 4096);
}

// A flow that lost trains is handed over in order, as its hosts rely on.
TEST_F(CongestionTest, WhatComesAgainStaysInOrder) {
  FabricNetworkOptions options;
  options.buffer = SharedBuffer{.size = Bytes(50'000), .alpha = 1};
  build(star(4, kLink, microseconds(1)), options);
  for (std::uint64_t i = 0; i < 50; ++i) {
    for (std::uint16_t from = 0; from < 3; ++from) send(from, 3, kBulk, 10'000, 1 + 100u * from + i);
  }
  run();
  EXPECT_GT(network->totals().refused, 10u);
  std::array<std::uint64_t, 3> next{1, 101, 201};
  for (const std::uint64_t token : sinks[3]->tokens) EXPECT_EQ(token, next[token / 100]++);
  EXPECT_EQ(next, (std::array<std::uint64_t, 3>{51, 151, 251}));
}

// ---- going back N ----

// Trains of 4,096 bytes leave host 0 every 3,277 ns and host 1's link, at 4 Gbit/s, takes 8,192 ns for each; cables
// take 1 us. The switch keeps two. Train k is there at 1,000 + 3,277 k: 0, 1 and 3 are kept and sent until 9,192,
// 17,384 and 25,576; 2 and 4 find two others.
class GoBackNTest : public CongestionTest {
 protected:
  // When the operation was there, in ns.
  std::int64_t run_trains(std::uint32_t trains, bool go_back_n) {
    FabricNetworkOptions options;
    options.buffer = SharedBuffer{.size = Bytes(2 * 4096), .alpha = 8};
    options.go_back_n = go_back_n;
    Topology slow = star(2, kLink, microseconds(1));
    slow.cables[1].rate = BitsPerSecond(4'000'000'000);
    build(slow, options);
    send(0, 1, kBulk, trains * 4096);
    run();
    EXPECT_EQ(sinks[1]->tokens.size(), 1u);
    EXPECT_EQ(sinks[1]->bytes[0][kBulk], trains * 4096u);
    return sinks[1]->last.value;
  }
};

// Train 3 is there at 26,576 and thrown away; its answer is with the sender 2 us later, and 2 and 3 come again: 2 is at
// the switch at 29,576, 3 behind it; that takes until 45,960. Selective repetition moves less, and waits for its
// time-out.
TEST_F(GoBackNTest, BeginsAgainAtTheGap) {
  EXPECT_EQ(run_trains(4, true), 46'960);
  EXPECT_EQ(network->totals().refused, 1u);
  EXPECT_EQ(network->totals().discarded, 1u);
  EXPECT_EQ(network->totals().sent_again, 2u);
  // 2 was refused at 7,554.
  EXPECT_EQ(run_trains(4, false), 7'554 + 500'000 + 1'000 + 8'192 + 1'000);
  EXPECT_EQ(network->totals().sent_again, 1u);
  EXPECT_EQ(network->totals().discarded, 0u);
}

// A fifth train, lost too, comes again behind 2 and 3 at 36,130, when the switch keeps both: it is refused once more.
// Nothing follows it, so that the time-out is what notices.
TEST_F(GoBackNTest, WaitsForItsTimeOutWhereNothingFollowsTheLoss) {
  EXPECT_EQ(run_trains(5, true), 36'130 + 500'000 + 1'000 + 8'192 + 1'000);
  EXPECT_EQ(network->totals().refused, 3u);
  EXPECT_EQ(network->totals().discarded, 1u);
  EXPECT_EQ(network->totals().sent_again, 3u + 1u);
}

// Queues that take longer than the time-out: what is behind the gap arrives after the sender has begun again, and is
// not taken for another gap.
TEST_F(GoBackNTest, QueuesMayTakeLongerThanTheTimeOut) {
  FabricNetworkOptions options;
  options.go_back_n = true;
  options.buffer = SharedBuffer{.size = Bytes(2'000'000), .alpha = 4};
  build(star(4, kLink, microseconds(1)), options);
  for (std::uint16_t from = 0; from < 3; ++from) {
    for (std::uint64_t i = 0; i < 60; ++i) send(from, 3, kBulk, 65'536, 1 + 100u * from + i);
  }
  run();
  std::array<std::uint64_t, 3> next{1, 101, 201};
  for (const std::uint64_t token : sinks[3]->tokens) EXPECT_EQ(token, next[token / 100]++);
  EXPECT_EQ(next, (std::array<std::uint64_t, 3>{61, 161, 261}));
  EXPECT_GT(network->totals().refused, 10u);
  EXPECT_GT(network->totals().peak_bytes, 1'500'000u) << "1.2 ms of the receiver's link";
}

// Crowded by three senders, and in order nevertheless; flow control loses nothing, and nothing is sent again.
TEST_F(GoBackNTest, HandsOverInOrderAndIsNotNeededWithFlowControl) {
  for (const bool pauses : {false, true}) {
    FabricNetworkOptions options;
    options.go_back_n = true;
    options.buffer = SharedBuffer{.size = Bytes(50'000), .alpha = 1};
    if (pauses) options.flow_control = PauseThresholds{Bytes(10'000), Bytes(5'000)};
    build(star(4, kLink, microseconds(1)), options);
    for (std::uint64_t i = 0; i < 50; ++i) {
      for (std::uint16_t from = 0; from < 3; ++from) send(from, 3, kBulk, 10'000, 1 + 100u * from + i);
    }
    run();
    std::array<std::uint64_t, 3> next{1, 101, 201};
    for (const std::uint64_t token : sinks[3]->tokens) EXPECT_EQ(token, next[token / 100]++);
    EXPECT_EQ(next, (std::array<std::uint64_t, 3>{51, 151, 251}));
    EXPECT_EQ(network->totals().sent_again > network->totals().refused, !pauses);
    EXPECT_EQ(network->totals().refused > 10, !pauses);
  }
}

// ---- others ----

// Bursts of others fill 30% of every link in the level of bulk. Bulk, which could have everything, gets what they leave
// free, or with less patience a bit more: they queue alike. Urgent transfers pass them under strict priority, and wait
// with them in a FIFO.
TEST_F(CongestionTest, ForeignBurstsSlowBulkAndNotUrgent) {
  const auto took_ms = [&](Discipline discipline, std::uint8_t level, bool with_foreign) {
    build(star(4, kLink, microseconds(1)), {.discipline = discipline});
    std::unique_ptr<ForeignTraffic> foreign;
    if (with_foreign) {
      foreign = std::make_unique<ForeignTraffic>(events, *network, star(4, kLink, microseconds(1)),
                                                 ForeignOptions{.load = 0.3, .level = kBulk, .seed = 7});
      foreign->start();
    }
    // 1,000 operations of 65,536 bytes on a link that carries 1.25 MB/ms: 52.4 ms.
    for (int i = 0; i < 1000; ++i) send(0, 1, level, 65'536);
    while (sinks[1]->tokens.size() < 1000) EXPECT_TRUE(events.run_next());
    return static_cast<double>(sinks[1]->last.value) / 1e6;
  };
  const double alone = took_ms(Discipline::kStrict, kBulk, false);
  EXPECT_NEAR(alone, 52.4, 0.1);
  EXPECT_NEAR(took_ms(Discipline::kStrict, kUrgent, true), alone, 0.5);
  EXPECT_GT(took_ms(Discipline::kStrict, kBulk, true), alone * 1.15);
  EXPECT_GT(took_ms(Discipline::kFifo, kUrgent, true), alone * 1.15);
}

// 30% of 1.25 MB/ms by 4 hosts for 100 ms are 150 MB: 143 bursts, give or take the square root of that over that of 3,
// since gaps are even between 0 and twice their mean. A few are left out.
TEST_F(CongestionTest, ForeignLoadIsWhatIsAskedFor) {
  build(star(4, kLink, microseconds(1)), {});
  ForeignTraffic foreign(events, *network, star(4, kLink, microseconds(1)), {.load = 0.3, .level = kBulk, .seed = 3});
  foreign.start();
  run_until(milliseconds(100));
  EXPECT_NEAR(static_cast<double>(foreign.bytes()) / 1e6, 150, 20);
}

// The same seed, the same run.
TEST_F(CongestionTest, IsTheSameTwice) {
  const auto run_once = [this] {
    FabricNetworkOptions options;
    options.flow_control = PauseThresholds{Bytes(300'000), Bytes(250'000)};
    options.buffer = SharedBuffer{.size = Bytes(500'000), .alpha = 2, .headroom = Bytes(20'000)};
    options.marking = marking();
    build(star(4, kLink, microseconds(1)), options);
    ForeignTraffic foreign(events, *network, star(4, kLink, microseconds(1)), {.load = 0.4, .level = kBulk});
    foreign.start();
    for (std::uint16_t from = 0; from < 3; ++from) fill(from, 3, kBulk, 16);
    run_until(milliseconds(20));
    const auto totals = network->totals();
    return std::tuple(events.executed(), totals.marked, totals.notified, totals.refused, foreign.bytes(), pauses());
  };
  EXPECT_EQ(run_once(), run_once());
}

}  // namespace
}  // namespace tensorlane::simulator
