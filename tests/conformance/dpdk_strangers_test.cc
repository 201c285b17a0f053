// Packets of strangers cost a host over packet ports a look at each, and nothing else: it rests as if there were none.
#include <cstring>
#include <random>

#include "daemon/transport/datagram/packet.h"
#include "daemon/transport/dpdk/port_report.h"
#include "daemon/transport/dpdk/way.h"
#include "dpdk_setup.h"
#include "packet_network.h"

namespace tensorlane::conformance {
namespace {

constexpr std::uint16_t kPort = 7109;

dpdk::IpAddress address(std::size_t number) {
  return dpdk::parse_ip("10.7.0." + std::to_string(number)).value();
}

std::unique_ptr<dpdk::PacketPort> open(std::size_t number) {
  dpdk::PortConfig port;
  port.device = "network";
  port.addresses = {{.address = address(number), .prefix = 24}};
  port.udp_port = kPort;
  for (const ClassSetup& c : three_classes()) port.queues.push_back({c.tag.dscp, c.tag.pcp});
  return make_network_port(port);
}

// Hosts at addresses 1, 2, ...; more where one finds its TCP port in use.
std::size_t opened = 0;
std::shared_ptr<ports::PortMetrics> last_metrics;  // of the last one

TransportKind kind() {
  TransportKind kind = tcp_ipv4();
  kind.told_by_peer = true;
  kind.make = [](const HostOptions& options, std::uint16_t data_port, ports::FlowOwner& owner) {
    dpdk::DpdkConfig config = dpdk_setup(options, data_port, DataProtection::kNone).transport;
    auto port = open(++opened);
    config.metrics = last_metrics = dpdk::make_port_metrics(*port);
    return dpdk::make_dpdk_transport(config, std::move(port), owner);
  };
  return kind;
}

// Of `polls` polls with some packets of a stranger each, after how many the host may rest.
template <typename Forge>
int rests(Pair& pair, dpdk::PacketPort& stranger, dpdk::PeerId victim, int polls, const Forge& forge) {
  int armed = 0;
  for (int i = 0; i < polls; ++i) {
    for (int k = 0; k < 4; ++k) {
      const std::span<std::byte> room = stranger.room(1);
      const std::size_t bytes = forge(room);
      stranger.commit(1, {victim, 50000}, bytes);
    }
    stranger.flush();
    pair.b->poll(pair.clock.now());
    armed += pair.b->arm();
    pair.clock.skip(microseconds(20));
  }
  return armed;
}

TEST(DpdkStrangers, KeepNobodyFromResting) {
  Pair pair(kind());
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(20));
  ASSERT_LT(opened, 200u);
  const auto stranger = open(200);
  const dpdk::PeerId victim = stranger->add_peer(address(opened)).value();
  std::mt19937_64 random(1);
  const auto noise = [&](std::span<std::byte> room) {
    for (std::byte& byte : room.first(200)) byte = static_cast<std::byte>(random());
    return std::size_t{200};
  };
  // The host takes one turn to ask for interrupts, and one to rest.
  const auto metrics = last_metrics;
  EXPECT_GT(rests(pair, *stranger, victim, 1000, noise), 250) << "random bytes";
  pair.clock.skip(milliseconds(200));
  pair.b->poll(pair.clock.now());
  ASSERT_EQ(metrics->drop_reasons.back(), "unknown_flow");
  EXPECT_NEAR(static_cast<double>(metrics->drops.back().value()), 4000.0, 10.0);
  EXPECT_LT(metrics->received_packets.value(), 100u) << "what was of flows";
  const auto lie = [&](std::span<std::byte> room) {
    noise(room);
    const datagram::Head head{.association = static_cast<std::uint32_t>(random() % 3),
                              .slot = static_cast<datagram::Slot>(random() % 3),
                              .number = random() % 8};
    std::memcpy(room.data(), &head, sizeof head);
    return std::size_t{200};
  };
  EXPECT_GT(rests(pair, *stranger, victim, 1000, lie), 250) << "flows that there are";
  pair.clock.skip(milliseconds(200));
  pair.b->poll(pair.clock.now());
  EXPECT_NEAR(static_cast<double>(metrics->drops.back().value()), 8000.0, 10.0) << "of no flow of this sender's";
  const auto bytes = pattern(1000, 1);
  pair.send(pair.a, pair.to_b(kUrgent), bytes);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 1; }));
  EXPECT_EQ(pair.b.sink->frames[0].payload, bytes);
  EXPECT_TRUE(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
  stranger->remove_peer(victim);
}

// What a peer says of itself in the handshake may be anything.
TEST(DpdkStrangers, APeerMustNameAHostAndPacketsThatCarrySomething) {
  const auto port = open(100);
  dpdk::FlowNumbers numbers;
  const auto go = [&](const auto& change) {
    auto way = dpdk::Way::open(numbers, *port).value();
    dpdk::Parameters theirs = way->mine();
    theirs.address = address(101).bytes;
    change(theirs);
    return way->go(theirs, 7).code();
  };
  EXPECT_EQ(go([](auto&) {}), Code::kOk);
  EXPECT_EQ(go([](auto& theirs) { theirs.address[4] = 1; }), Code::kInvalidArgument) << "bytes behind an IPv4 address";
  EXPECT_EQ(go([](auto& theirs) { theirs.address[15] = 1; }), Code::kInvalidArgument);
  for (const std::uint8_t first : {0, 127, 224, 255})
    EXPECT_EQ(go([&](auto& theirs) { theirs.address[0] = first; }), Code::kInvalidArgument) << int{first};
  EXPECT_EQ(go([](auto& theirs) { theirs.v6 = 1; }), Code::kMismatch);
  EXPECT_EQ(go([](auto& theirs) { theirs.packet_bytes = 511; }), Code::kMismatch);
  EXPECT_EQ(go([](auto& theirs) { ++theirs.udp_port; }), Code::kMismatch);
  EXPECT_EQ(go([](auto& theirs) { ++theirs.version; }), Code::kMismatch);
}

}  // namespace
}  // namespace tensorlane::conformance
