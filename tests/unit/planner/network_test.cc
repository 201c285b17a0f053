// The planner's network: rates, disciplines, routes and flow control, by hand.
#include <gtest/gtest.h>

#include "simulator/network/fabric_network.h"

namespace tensorlane::simulator {
namespace {

constexpr BitsPerSecond kTenGbps{10'000'000'000};

struct Arrival {
  std::uint16_t from;
  std::uint8_t level;
  std::int64_t at;
  bool operator==(const Arrival&) const = default;
};

class Recorder final : public FabricSink {
 public:
  explicit Recorder(EventQueue& events) : events_(events) {}
  void on_delivered(const Message& m) override { delivered.push_back({m.from.value, m.level, events_.now().value}); }
  void on_acknowledged(const Message&) override { acknowledged.push_back(events_.now().value); }
  std::vector<Arrival> delivered;
  std::vector<std::int64_t> acknowledged;

 private:
  EventQueue& events_;
};

class FabricNetworkTest : public testing::Test {
 protected:
  void build(const Topology& topology, FabricNetworkOptions options) {
    options.header_bytes = 0;
    network = std::make_unique<FabricNetwork>(events, topology, options);
    for (std::uint16_t h = 0; h < topology.hosts; ++h) {
      sinks.push_back(std::make_unique<Recorder>(events));
      network->attach(HostIndex(h), sinks.back().get());
    }
  }
  void send(std::uint16_t from, std::uint16_t to, std::uint8_t level, std::uint32_t bytes) {
    Message m{.from = HostIndex(from), .to = HostIndex(to), .level = level};
    m.header.payload_bytes = bytes;
    network->send(m);
  }
  void run() {
    while (events.run_next()) {
    }
  }
  EventQueue events;
  std::unique_ptr<FabricNetwork> network;
  std::vector<std::unique_ptr<Recorder>> sinks;
};

// 125,000 bytes take 100 us on each link; a switch forwards while it receives.
TEST_F(FabricNetworkTest, ATrainTakesItsLengthOnceAndEveryDelay) {
  build(star(2, kTenGbps, microseconds(3)), {});
  send(0, 1, 1, 125'000);
  run();
  EXPECT_EQ(sinks[1]->delivered, (std::vector<Arrival>{{0, 1, 106'000}}));
  EXPECT_EQ(sinks[0]->acknowledged, (std::vector<std::int64_t>{112'000}));
}

TEST(RoutesTest, ANetworkThatFallsApartHasNoWayBetweenItsParts) {
  // Hosts 0 and 1 at switch 4, with two cables to switch 5, where host 2 is; host 3 alone at switch 6.
  Topology t{.hosts = 4, .nodes = 7};
  const auto cable = [&t](NodeIndex a, NodeIndex b) { t.cables.push_back({a, b, kTenGbps, Duration()}); };
  cable(0, 4), cable(1, 4), cable(4, 5), cable(4, 5), cable(2, 5), cable(3, 6);
  const Routes routes(t);
  const auto ports = [&](NodeIndex node, std::uint16_t to) {
    const std::span<const std::uint32_t> found = routes.ports(node, HostIndex(to));
    return std::vector<std::uint32_t>(found.begin(), found.end());
  };
  using Ports = std::vector<std::uint32_t>;
  EXPECT_EQ(ports(0, 1), Ports{0});
  EXPECT_EQ(ports(0, 2), Ports{0});
  EXPECT_EQ(ports(4, 2), (Ports{4, 6}));
  EXPECT_EQ(ports(4, 1), Ports{3});
  EXPECT_EQ(ports(5, 2), Ports{9});
  EXPECT_EQ(ports(6, 3), Ports{11});
  for (std::uint16_t other : {0, 1, 2}) {
    EXPECT_EQ(ports(3, other), Ports{}) << other;
    EXPECT_EQ(ports(other, 3), Ports{}) << other;
    EXPECT_EQ(ports(6, other), Ports{}) << other;
  }
  EXPECT_EQ(ports(4, 3), Ports{});
}

// A fast link behind a slow one is not held by a train that comes in slowly.
TEST_F(FabricNetworkTest, FastLinkIsSharedByTrainsOfSlowOnes) {
  Topology t{.hosts = 3, .nodes = 4};
  t.cables = {
      {0, 3, kTenGbps, Duration()}, {1, 3, kTenGbps, Duration()}, {2, 3, BitsPerSecond(20'000'000'000), Duration()}};
  build(t, {});
  send(0, 2, 1, 125'000);
  send(1, 2, 1, 125'000);
  run();
  EXPECT_EQ(sinks[2]->delivered, (std::vector<Arrival>{{0, 1, 100'000}, {1, 1, 150'000}}));
}

TEST_F(FabricNetworkTest, StrictPortsLetUrgentPassWhatWaits) {
  build(star(3, kTenGbps, Duration()), {.discipline = Discipline::kStrict});
  for (int i = 0; i < 3; ++i) send(0, 2, 2, 125'000);
  events.at(Time(50'000), [&] { send(1, 2, 1, 125'000); });
  run();
  ASSERT_EQ(sinks[2]->delivered.size(), 4u);
  EXPECT_EQ(sinks[2]->delivered[1], (Arrival{1, 1, 200'000}));
}

TEST_F(FabricNetworkTest, FifoPortsDoNot) {
  build(star(3, kTenGbps, Duration()), {.discipline = Discipline::kFifo});
  for (int i = 0; i < 3; ++i) send(0, 2, 2, 125'000);
  events.at(Time(250'000), [&] { send(1, 2, 1, 125'000); });
  run();
  EXPECT_EQ(sinks[2]->delivered.back(), (Arrival{1, 1, 400'000}));
}

TEST_F(FabricNetworkTest, OperationsAreCutIntoTrainsAndDeliveredWhole) {
  build(star(2, kTenGbps, Duration()), {.train = Bytes(12'500)});
  send(0, 1, 2, 125'000);
  events.at(Time(1), [&] { send(0, 1, 1, 12'500); });
  run();
  EXPECT_EQ(sinks[1]->delivered, (std::vector<Arrival>{{0, 1, 20'000}, {0, 2, 110'000}}));
}

// Two senders overfill one receiver's port: the switch pauses both, and a third flow from one of them, to a host that
// has room, is held up with them: how PFC's pauses spread.
TEST_F(FabricNetworkTest, PausesSpreadToFlowsThatHaveRoom) {
  const auto victim_at = [this](bool flow_control) {
    events = EventQueue();
    sinks.clear();
    FabricNetworkOptions options{.discipline = Discipline::kStrict};
    if (flow_control) options.flow_control = PauseThresholds{Bytes(250'000), Bytes(125'000)};
    build(star(4, kTenGbps, Duration()), options);
    for (int i = 0; i < 8; ++i) {
      send(0, 2, 1, 125'000);
      send(1, 2, 1, 125'000);
    }
    send(0, 3, 1, 125'000);
    run();
    EXPECT_EQ(sinks[2]->delivered.size(), 16u);
    return sinks[3]->delivered.at(0).at;
  };
  EXPECT_EQ(victim_at(false), 900'000);
  EXPECT_GT(victim_at(true), 1'200'000);
  std::uint64_t pauses = 0;
  for (const auto& port : network->counters()) pauses += port.pauses;
  EXPECT_GT(pauses, 0u);
}

// Two switches with two links between them: flows take either, each keeps its way.
TEST_F(FabricNetworkTest, RoutesTakeAllShortestWays) {
  Topology t{.hosts = 4, .nodes = 6};
  for (NodeIndex h = 0; h < 4; ++h) t.cables.push_back({h, h < 2 ? 4u : 5u, kTenGbps, Duration()});
  t.cables.push_back({4, 5, kTenGbps, Duration()});
  t.cables.push_back({4, 5, kTenGbps, Duration()});
  build(t, {});
  for (std::uint8_t level = 0; level < kLevels; ++level) {
    for (int i = 0; i < 4; ++i) send(0, 2, level, 12'500);
    for (int i = 0; i < 4; ++i) send(1, 3, level, 12'500);
  }
  run();
  EXPECT_EQ(sinks[2]->delivered.size(), 4u * kLevels);
  const auto ports = network->counters();
  EXPECT_GT(ports[8].busy.value, 0);
  EXPECT_GT(ports[10].busy.value, 0);
}

}  // namespace
}  // namespace tensorlane::simulator
