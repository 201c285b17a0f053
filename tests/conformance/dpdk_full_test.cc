// Ports of which not all is as it should be: devices that take no packet for a while, neighbours that are late, packets
// of different lengths, and losses while a host rests.
#include <fmt/format.h>

#include <random>

#include "dpdk_kinds.h"
#include "dpdk_setup.h"

namespace tensorlane::conformance {
namespace {

class DpdkFull : public ::testing::Test {
 protected:
  bool came(std::span<const std::byte> payload) {
    return std::ranges::any_of(pair.b.sink->frames,
                               [&](const auto& frame) { return std::ranges::equal(frame.payload, payload); });
  }

  const std::shared_ptr<bool> full = std::make_shared<bool>(false);
  Pair pair{dpdk_kind("full", false, DataProtection::kNone, {.full = full})};
};

// Its payload is the caller's again, who writes other things there.
TEST_F(DpdkFull, APacketOfAFlowThatHasEndedReadsNoPayload) {
  const auto payload = pattern(1000, 1);
  auto memory = payload;
  *full = true;
  pair.a.send(pair.to_b(kBulk), {data_header(), memory, 1});
  pair.a->poll(pair.clock.now());
  pair.a->close(pair.to_b(kBulk));
  ASSERT_TRUE(run_until(pair.clock, {&pair.a}, [&] { return !pair.a.sink->downs.empty(); }));
  std::ranges::fill(memory, std::byte{7});
  *full = false;
  pair.a->poll(pair.clock.now());
  pair.b->poll(pair.clock.now());  // which takes packets before it looks at connections
  ASSERT_EQ(pair.b.sink->frames.size(), 1u);
  EXPECT_EQ(pair.b.sink->frames.front().payload, payload);
}

// Data of every class, both ways, and so acknowledgements: who has found no room is not forgotten.
TEST_F(DpdkFull, WhoeverFoundNoRoomHasItsTurnAgain) {
  constexpr std::size_t kFrames = 40;
  const auto payload = pattern(30'000, 2);
  std::mt19937 random(3);
  for (std::size_t i = 0; i < kFrames; ++i) {
    for (const ClassId cls : {kUrgent, kBulk}) {
      *full = false;
      pair.send(pair.a, pair.to_b(cls), payload);
      pair.send(pair.b, pair.to_a(cls), payload);
    }
    *full = true;
    for (int polls = 0; polls < 40; ++polls) {
      pair.clock.skip(tensorlane::microseconds(random() % 2000));
      (*full ? pair.a : pair.b)->poll(pair.clock.now());
      (*full ? pair.b : pair.a)->poll(pair.clock.now());
      if (random() % 8 == 0) *full = !*full;
    }
  }
  *full = false;
  const auto all_came = [&] {
    return pair.a.sink->frames.size() == 2 * kFrames && pair.b.sink->frames.size() == 2 * kFrames;
  };
  EXPECT_TRUE(pair.run_until(all_came)) << pair.a.sink->frames.size() << ", " << pair.b.sink->frames.size();
  EXPECT_TRUE(came(payload));
  EXPECT_TRUE(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

TEST_F(DpdkFull, NobodyRestsWhereSomethingWaitsForRoom) {
  const auto rests = [&] {
    for (int polls = 0; polls < 100; ++polls) {
      pair.clock.skip(tensorlane::microseconds(100));
      pair.a->poll(pair.clock.now());
      if (pair.a->arm()) return true;
    }
    return false;
  };
  EXPECT_TRUE(rests());
  const auto payload = pattern(kMaxOperation.value, 6);
  pair.send(pair.a, pair.to_b(kBulk), payload);
  for (int polls = 0; polls < 6; ++polls) (polls % 2 == 0 ? pair.a : pair.b)->poll(pair.clock.now());
  ASSERT_TRUE(pair.b.sink->frames.empty()) << "it is under way";
  *full = true;
  EXPECT_FALSE(rests());
}

// A flow is up when both ends may send; until then each end looks again and again.
TEST(DpdkNeighbours, AFlowIsUpOnceBothKnowTheOther) {
  Pair pair(dpdk_kind("slow", false, DataProtection::kNone, {.neighbour_time = tensorlane::milliseconds(30)}));
  ASSERT_TRUE(pair.a.sink->up(pair.to_b(kBulk)));
  const auto payload = pattern(100'000, 4);
  pair.send(pair.a, pair.to_b(kBulk), payload);
  pair.send(pair.b, pair.to_a(kBulk), payload);
  EXPECT_TRUE(pair.run_until([&] { return !pair.a.sink->frames.empty() && !pair.b.sink->frames.empty(); }));
}

// Whoever rests between packets sends again what is lost, however often its timers were put off before.
TEST(DpdkTimers, OutlastRests) {
  Pair pair(dpdk_kind("rests", false, DataProtection::kNone, {.lost = 0.2}));
  const auto payload = pattern(1000, 8);
  int rests = 0;
  for (std::size_t count = 1; count <= 100; ++count) {
    pair.send(pair.a, pair.to_b(kBulk), payload);
    for (int step = 0; step < 20'000 && pair.b.sink->frames.size() < count; ++step) {
      pair.clock.skip(tensorlane::microseconds(100));
      for (Host* host : {&pair.a, &pair.b}) {
        (*host)->poll(pair.clock.now());
        rests += (*host)->arm() ? 1 : 0;
      }
    }
    ASSERT_EQ(pair.b.sink->frames.size(), count);
  }
  EXPECT_GT(rests, 100);
}

// Host 0 has long packets, host 1 has not: neither sends what the other one's port does not take.
TEST(DpdkPackets, AreAsLongAsBothPortsTake) {
  TransportKind kind = dpdk_kind("lengths", false, DataProtection::kNone);
  std::uint8_t hosts = 0;
  kind.make = [&hosts](const HostOptions& options, std::uint16_t data_port, ports::FlowOwner& owner) {
    DpdkSetup setup = dpdk_setup(options, data_port, DataProtection::kNone);
    setup.port.device = "network";
    setup.port.addresses = {{.address = *dpdk::parse_ip(fmt::format("10.254.0.{}", ++hosts)), .prefix = 24}};
    setup.port.mtu = hosts == 1 ? 9000 : 1500;
    return dpdk::make_dpdk_transport(setup.transport, make_network_port(setup.port), owner);
  };
  Pair pair(kind);
  const auto payload = pattern(100'000, 5);
  pair.send(pair.a, pair.to_b(kBulk), payload);
  pair.send(pair.b, pair.to_a(kBulk), payload);
  EXPECT_TRUE(pair.run_until([&] { return !pair.a.sink->frames.empty() && !pair.b.sink->frames.empty(); }));
}

}  // namespace
}  // namespace tensorlane::conformance
