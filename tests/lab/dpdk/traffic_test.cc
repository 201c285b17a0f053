// Ports at a cable of the kernel's: what they send is what others see, the kernel is a neighbour, and strangers are
// dropped and counted.
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/transport/dpdk/port/framing.h"
#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

constexpr std::size_t kDscpAt4 = 15, kDscpAt6 = 14;

TEST_F(PortTest, EveryClassHasItsTagsOnTheWire) {
  for (const bool v6 : {false, true}) {
    PortConfig of_a = config(1), of_b = config(2);
    of_a.vlan = of_b.vlan = 0;
    auto a = open(of_a), b = open(of_b);
    ASSERT_TRUE(a && b);
    const PeerId peer = a->add_peer(ip(v6 ? "fd09::2" : "10.9.0.2")).value();
    ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
    Capture third("tlb");
    for (std::size_t queue = 0; queue < 3; ++queue) {
      const std::array payloads{bytes("first"), bytes("second"), bytes("")};
      ASSERT_EQ(send(*a, queue, {peer, 50001}, payloads), 3U);
      const auto arrived = receive(*b, 3);
      ASSERT_EQ(arrived.size(), 3U) << queue;
      EXPECT_EQ(arrived[0].payload, "first");
      EXPECT_EQ(arrived[1].payload, "second");
      EXPECT_EQ(arrived[2].payload, "");
      for (const Arrived& one : arrived) {
        EXPECT_EQ(one.packet.dscp, of_a.queues[queue].dscp);
        EXPECT_EQ(one.packet.pcp, of_a.queues[queue].pcp);
        EXPECT_TRUE(one.packet.tagged);
        EXPECT_EQ(one.packet.source_port, 50001);
        EXPECT_EQ(one.packet.from, ip(v6 ? "fd09::1" : "10.9.0.1"));
      }
      for (int i = 0; i < 3; ++i) {
        const auto frame = third.next();
        ASSERT_TRUE(frame && frame->tci) << queue;
        EXPECT_EQ(*frame->tci >> 13, of_a.queues[queue].pcp);
        EXPECT_EQ(*frame->tci & 0xfff, 0);
        const auto traffic_class = v6 ? load16(&frame->bytes[kDscpAt6]) >> 4 & 0xff : load8(&frame->bytes[kDscpAt4]);
        EXPECT_EQ(traffic_class >> 2, of_a.queues[queue].dscp);
        EXPECT_EQ(traffic_class & 3, 2) << "ECT(0)";
      }
      EXPECT_EQ(a->counts().sent[queue].packets, queue == 0 ? 4U : 3U) << "and the question for the neighbour";
    }
  }
}

// A payload in three parts, of which the middle one lies elsewhere: it is read when the device takes the packet, unless
// the port was to keep it.
TEST_F(PortTest, ReadsPartsWhereTheyLieUntilTheyAreKept) {
  auto a = open(config(1)), b = open(config(2));
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(a->gathers());
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
  for (const bool keeps : {true, false}) {
    const std::uint64_t before = a->borrowed(1);
    std::string outside(999, 'o');
    const std::span<std::byte> room = a->room(1);
    ASSERT_FALSE(room.empty());
    std::ranges::copy(bytes("headtail"), room.begin());
    const std::array<std::span<const std::byte>, 3> parts{room.first(4), bytes(outside), room.subspan(4, 4)};
    ASSERT_TRUE(a->commit(1, {peer, 50001}, parts));
    EXPECT_EQ(a->borrowed(1), before + 1);
    EXPECT_EQ(a->released(1), before);
    if (keeps) a->keep(1);
    EXPECT_EQ(a->released(1), before + (keeps ? 1 : 0));
    outside.assign(999, 'x');
    EXPECT_EQ(a->flush(), 0U);
    EXPECT_EQ(a->released(1), before + 1);
    const auto arrived = receive(*b, 1, keeps ? milliseconds(500) : milliseconds(100));
    ASSERT_EQ(arrived.size(), keeps ? 1U : 0U) << "its checksum is of what lay there before";
    EXPECT_EQ(b->counts().drops(Drop::kUdpChecksum), keeps ? 0U : 1U);
    if (!keeps) continue;
    EXPECT_EQ(arrived[0].payload, "head" + std::string(999, 'o') + "tail");
  }
}

TEST_F(PortTest, AVlanIsApartFromOthers) {
  PortConfig of_a = config(1), of_b = config(2);
  of_a.vlan = of_b.vlan = 7;
  auto a = open(of_a), b = open(of_b);
  ASSERT_TRUE(a && b);
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
  ASSERT_EQ(send(*a, 1, {peer, 50001}, std::array{bytes("seven")}), 1U);
  const auto arrived = receive(*b, 1);
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].packet.pcp, 4);
  a.reset();
  of_a.vlan = 8;
  of_a.neighbours = {{ip("10.9.0.2"), b->mac()}};
  a = open(of_a);
  ASSERT_TRUE(a);
  ASSERT_EQ(send(*a, 1, {a->add_peer(ip("10.9.0.2")).value(), 50001}, std::array{bytes("eight")}), 1U);
  EXPECT_TRUE(receive(*b, 1).empty());
  EXPECT_EQ(b->counts().drops(Drop::kForeignVlan), 1U);
}

TEST_F(PortTest, TheKernelIsANeighbour) {
  auto a = open(config(1));
  ASSERT_TRUE(a);
  const KernelHost kernel({"10.9.0.2/24", "fd09::2/64"});
  for (const bool v6 : {false, true}) {
    const std::string kernel_address = v6 ? "fd09::2" : "10.9.0.2", own = v6 ? "fd09::1" : "10.9.0.1";
    KernelSocket socket(v6, kPort);
    // The kernel asks first.
    ASSERT_TRUE(socket.send(own, kPort, "from the kernel"));
    auto arrived = receive(*a, 1, seconds(3));
    ASSERT_EQ(arrived.size(), 1U) << own;
    EXPECT_EQ(arrived[0].payload, "from the kernel");
    EXPECT_EQ(arrived[0].packet.from, ip(kernel_address));
    EXPECT_EQ(arrived[0].packet.source_port, kPort);
    // The port asks.
    const PeerId peer = a->add_peer(ip(kernel_address)).value();
    ASSERT_TRUE(becomes_reachable(*a, peer)) << kernel_address;
    const std::string longest(a->max_payload(v6), 'x');
    for (const std::string& payload : {std::string("from the port"), longest, std::string("odd")}) {
      ASSERT_EQ(send(*a, 0, {peer, 50001}, std::array{bytes(payload)}), 1U);
      std::string received;
      for (int tries = 0; tries < 50 && received.empty(); ++tries) received = socket.receive();
      EXPECT_EQ(received, payload) << kernel_address;
    }
    ASSERT_TRUE(socket.send(own, kPort, longest));
    arrived = receive(*a, 1);
    ASSERT_EQ(arrived.size(), 1U);
    EXPECT_EQ(arrived[0].payload, longest);
  }
  EXPECT_GE(a->counts().neighbour_answers, 2U);
  EXPECT_EQ(a->counts().drops(Drop::kUdpChecksum), 0U);
}

TEST_F(PortTest, StrangersAreDroppedAndCounted) {
  auto b = open(config(2));
  ASSERT_TRUE(b);
  PortConfig forger = config(1);
  forger.neighbours = {{ip("10.9.0.2"), b->mac()}};
  Framing framing(forger, {2, 0, 0, 0, 0, 9});
  const PeerId peer = framing.add_peer(ip("10.9.0.2")).value();
  std::array<std::byte, 200> memory{};
  const std::size_t header = framing.write(0, {peer, 50001}, &memory[100], 20, {});
  const std::vector<std::byte> right(&memory[100 - header], &memory[120]);
  Capture wire("tla");
  const auto count = [&](Drop drop, std::size_t at, std::uint8_t value, bool mend) {
    auto frame = right;
    store8(&frame[at], value);
    if (mend) {
      store16(&frame[24], 0);
      store_checksum(&frame[24], add_to_sum(0, {&frame[14], 20}));
    }
    const std::uint64_t before = b->counts().drops(drop);
    wire.send(frame);
    EXPECT_TRUE(receive(*b, 1, milliseconds(50)).empty()) << drop_name(drop);
    EXPECT_EQ(b->counts().drops(drop), before + 1) << drop_name(drop);
  };
  count(Drop::kForeignMac, 5, 0x77, false);
  count(Drop::kForeignProtocol, 12, 0x99, false);
  count(Drop::kForeignAddress, 33, 77, true);
  count(Drop::kForeignPort, 36, 1, false);
  count(Drop::kBadLength, 17, 200, true);
  count(Drop::kBadLength, 39, 27, false);
  count(Drop::kIpChecksum, 24, 1, false);
  count(Drop::kUdpChecksum, 40, 1, false);
  count(Drop::kBadSource, 26, 224, true);
  wire.send(right);
  EXPECT_EQ(receive(*b, 1).size(), 1U);
  // Of IPv4 the kernel keeps the fragments that go to packet sockets, and puts them together; of IPv6 it does not.
  const PeerId six = framing.add_peer(ip("fd09::2")).value();
  auto question = std::vector<std::byte>(kMaxDiscoveryBytes);
  question.resize(framing.next_discovery(now(), question));
  wire.send(question);
  receive(*b, 1, milliseconds(50));
  for (auto answer = wire.next(); answer && !framing.reachable(six); answer = wire.next())
    framing.take(now(), answer->bytes, {});
  const std::size_t longer = framing.write(0, {six, 50001}, &memory[100], 20, {});
  ASSERT_GT(longer, 0U);
  store8(&memory[100 - longer + 20], kProtocolFragment);
  wire.send({&memory[100 - longer], longer + 20});
  EXPECT_TRUE(receive(*b, 1, milliseconds(50)).empty());
  EXPECT_EQ(b->counts().drops(Drop::kFragment), 1U);
}

TEST_F(PortTest, SaysWhatTheDeviceCountsAndTheLink) {
  auto a = open(config(1)), b = open(config(2));
  ASSERT_TRUE(a && b);
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
  ASSERT_EQ(send(*a, 2, {peer, 50001}, std::array{bytes("x"), bytes("y")}), 2U);
  std::uint64_t of_queue = 0;
  for (const DeviceCount& count : a->device_counts())
    if (count.name == "tx_q2_packets") of_queue = count.value;
  EXPECT_EQ(of_queue, 2U);
  EXPECT_TRUE(a->link().up);
  const std::uint64_t changes = a->counts().link_changes;
  ASSERT_TRUE(run("ip link set tlb down"));
  receive(*a, 1, milliseconds(250));
  EXPECT_FALSE(a->link().up);
  ASSERT_TRUE(run("ip link set tlb up"));
  receive(*a, 1, milliseconds(250));
  EXPECT_TRUE(a->link().up);
  EXPECT_EQ(a->counts().link_changes, changes + 2);
}

TEST_F(PortTest, WritesPayloadsInPlaceAndKeepsWhatIsNotSent) {
  auto a = open(config(1)), b = open(config(2));
  ASSERT_TRUE(a && b);
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  const auto room = a->room(1);
  ASSERT_EQ(room.size(), 1472U);
  std::memcpy(room.data(), "in place", 8);
  EXPECT_FALSE(a->commit(1, {peer, 50001}, 8)) << "nobody has answered yet";
  ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
  EXPECT_EQ(a->room(1).data(), room.data());
  ASSERT_TRUE(a->commit(1, {peer, 50001}, 8));
  EXPECT_TRUE(receive(*b, 1, milliseconds(20)).empty());
  EXPECT_EQ(a->flush(), 0U);
  const auto arrived = receive(*b, 1);
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].payload, "in place");
}

TEST_F(PortTest, LongFrames) {
  ASSERT_TRUE(run("ip link set tla mtu 9000 && ip link set tlb mtu 9000"));
  PortConfig of_a = config(1), of_b = config(2);
  of_a.mtu = of_b.mtu = 9000;
  of_a.vlan = of_b.vlan = 0;
  {
    auto a = open(of_a), b = open(of_b);
    ASSERT_TRUE(a && b);
    const PeerId peer = a->add_peer(ip("fd09::2")).value();
    ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
    const std::string longest(a->max_payload(true), 'x');
    ASSERT_EQ(send(*a, 0, {peer, 50001}, std::array{bytes(longest)}), 1U);
    const auto arrived = receive(*b, 1);
    ASSERT_EQ(arrived.size(), 1U);
    EXPECT_EQ(arrived[0].payload, longest);
  }
  ASSERT_TRUE(run("ip link set tla mtu 1500 && ip link set tlb mtu 1500"));
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
