// A port's peers, and its part in ARP and neighbour discovery, through frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

using ::testing::HasSubstr;

std::uint64_t all_drops(const Framing& port) {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : port.counts().dropped) sum += count;
  return sum;
}

TEST(Framing, AsksForNeighboursAndAnswers) {
  for (const char* const address : {"10.0.0.2", "fd00::2"}) {
    Framing a(config(1), kMacA), b(config(2), kMacB);
    const PeerId peer = a.add_peer(ip(address)).value();
    EXPECT_FALSE(a.reachable(peer));
    EXPECT_TRUE(datagram(a, 0, {peer, 50000}, "x").empty());
    introduce(a, b, Time(0));
    EXPECT_TRUE(a.reachable(peer)) << address;
    auto frame = datagram(a, 0, {peer, 50000}, "x");
    EXPECT_EQ(load_mac(frame.data()), kMacB);
    EXPECT_EQ(a.counts().neighbour_questions, 1U);
    EXPECT_EQ(b.counts().neighbour_answers, 1U);
    EXPECT_EQ(all_drops(a) + all_drops(b), 0U);
  }
}

TEST(Framing, SendsThroughTheGateway) {
  Framing a(config(1), kMacA);
  PortConfig router = config(1);
  router.addresses = {{ip("10.0.0.254"), 24, std::nullopt}};
  Framing b(router, kMacRouter);
  const PeerId peer = a.add_peer(ip("192.168.7.7")).value();
  introduce(a, b, Time(0));
  const auto frame = datagram(a, 0, {peer, 50000}, "x");
  ASSERT_FALSE(frame.empty());
  EXPECT_EQ(load_mac(frame.data()), kMacRouter);
  EXPECT_EQ(load_ip(&frame[kEthernetBytes + kVlanTagBytes + 16], false), ip("192.168.7.7"));
}

TEST(Framing, AsksAndSendsFromItsAddressInThePeersNetwork) {
  PortConfig two = config(1);
  two.addresses.push_back({ip("10.1.0.1"), 24, std::nullopt});
  Framing a(two, kMacA);
  const PeerId peer = a.add_peer(ip("10.1.0.2")).value();
  PortConfig there = config(2);
  there.addresses = {{ip("10.1.0.2"), 24, std::nullopt}};
  Framing b(there, kMacB);
  auto question = discovery(a, Time(0));
  ASSERT_FALSE(question.empty());
  EXPECT_EQ(load_ip(&question[kEthernetBytes + kVlanTagBytes + 14], false), ip("10.1.0.1"));
  b.take(Time(0), question, {});
  auto answer = discovery(b, Time(0));
  a.take(Time(0), answer, {});
  const auto frame = datagram(a, 0, {peer, 50000}, "x");
  ASSERT_FALSE(frame.empty());
  EXPECT_EQ(load_ip(&frame[kEthernetBytes + kVlanTagBytes + 12], false), ip("10.1.0.1"));
}

// The checksum is that of the whole, wherever its parts begin.
TEST(Framing, APayloadInPartsHasTheHeadersOfTheWhole) {
  Framing port(config(1), kMacA), other(config(2), kMacB);
  const Path path{port.add_peer(ip("10.0.0.2")).value(), 50001};
  introduce(port, other, Time(0));
  std::vector<std::byte> whole(301);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::byte>(i * 37);
  const auto write = [&](std::size_t first, std::size_t second) {
    std::vector<std::byte> memory(kMaxHeaderBytes + whole.size());
    std::ranges::copy(whole, memory.begin() + kMaxHeaderBytes);
    const auto bytes = std::span<const std::byte>(whole);
    const std::array parts{bytes.subspan(first, second), bytes.subspan(first + second)};
    const std::size_t header = port.write(0, path, &memory[kMaxHeaderBytes], first, {}, parts);
    return std::vector<std::byte>(memory.begin() + static_cast<std::ptrdiff_t>(kMaxHeaderBytes - header),
                                  memory.begin() + kMaxHeaderBytes);
  };
  const std::vector<std::byte> right = write(whole.size(), 0);
  ASSERT_GT(right.size(), 0u);
  for (const auto& [first, second] : {std::pair<std::size_t, std::size_t>{40, 100}, {41, 100}, {41, 101}, {0, 1}})
    EXPECT_EQ(write(first, second), right) << first << ", " << second;
}

TEST(Framing, RefusesPeersThatCannotBe) {
  PortConfig small = config(1);
  small.max_peers = 1;
  small.addresses.pop_back();
  Framing port(small, kMacA);
  EXPECT_THAT(port.add_peer(ip("fd00::2")).status().to_string(), HasSubstr("no IPv6 address"));
  EXPECT_THAT(port.add_peer(ip("224.0.0.1")).status().to_string(), HasSubstr("no address of a host"));
  EXPECT_THAT(port.add_peer(ip("10.0.0.1")).status().to_string(), HasSubstr("to itself"));
  const PeerId peer = port.add_peer(ip("10.0.0.2")).value();
  EXPECT_EQ(port.add_peer(ip("10.0.0.3")).status().code(), Code::kResourceExhausted);
  port.remove_peer(peer);
  EXPECT_TRUE(port.add_peer(ip("10.0.0.3")).ok());
  // One host counts once, whatever flows go there.
  const PeerId again = port.add_peer(ip("10.0.0.3")).value();
  EXPECT_EQ(port.add_peer(ip("10.0.0.3")).value(), again);
  port.remove_peer(again);
  port.remove_peer(again);
  EXPECT_EQ(port.add_peer(ip("10.0.0.2")).status().code(), Code::kResourceExhausted) << "one more has added it";
  port.remove_peer(again);
  EXPECT_TRUE(port.add_peer(ip("10.0.0.2")).ok());
  Framing dual(config(1), kMacA);
  EXPECT_THAT(dual.add_peer(ip("fd99::2")).status().to_string(), HasSubstr("no gateway"));
}

TEST(Framing, UsesStaticNeighboursWhateverTheNetworkSays) {
  PortConfig with = config(1);
  with.neighbours = {{ip("10.0.0.2"), kMacB}};
  Framing a(with, kMacA);
  const PeerId peer = a.add_peer(ip("10.0.0.2")).value();
  EXPECT_TRUE(a.reachable(peer));
  EXPECT_TRUE(discovery(a, Time(0)).empty());
  // A liar who was asked by somebody else.
  Framing asker(config(1), kMacA), liar(config(2), kMacRouter);
  ASSERT_TRUE(asker.add_peer(ip("10.0.0.2")).ok());
  auto question = discovery(asker, Time(0));
  liar.take(Time(0), question, {});
  auto answer = discovery(liar, Time(0));
  a.take(Time(0), answer, {});
  EXPECT_EQ(a.counts().drops(Drop::kUnasked), 1U);
  EXPECT_EQ(load_mac(datagram(a, 0, {peer, 50000}, "x").data()), kMacB);
}

TEST(Framing, AFloodOfAnswersChangesCountersOnly) {
  for (const char* const address : {"10.0.0.2", "fd00::2"}) {
    Framing a(config(1), kMacA), asker(config(1), kMacA), liar(config(2), kMacRouter);
    ASSERT_TRUE(asker.add_peer(ip(address)).ok());
    auto question = discovery(asker, Time(0));
    liar.take(Time(0), question, {});
    const auto answer = discovery(liar, Time(0));
    for (int i = 0; i < 1000; ++i) {
      auto copy = answer;
      a.take(Time(i), copy, {});
    }
    EXPECT_EQ(a.counts().drops(Drop::kUnasked), 1000U);
    const PeerId peer = a.add_peer(ip(address)).value();
    EXPECT_FALSE(a.reachable(peer));
  }
}

TEST(Framing, AnswersAtABoundedRate) {
  for (const char* const address : {"10.0.0.2", "fd00::2"}) {
    Framing asker(config(1), kMacA), b(config(2), kMacB);
    ASSERT_TRUE(asker.add_peer(ip(address)).ok());
    const auto question = discovery(asker, Time(0));
    int answers = 0;
    for (int i = 0; i < 10000; ++i) {  // a second
      auto copy = question;
      b.take(Time(i * 100'000), copy, {});
      while (!discovery(b, Time(i * 100'000)).empty()) ++answers;
    }
    EXPECT_GE(answers, 900);
    EXPECT_LE(answers, 1100);
    EXPECT_EQ(b.counts().drops(Drop::kAnswerLimited), 10000U - static_cast<unsigned>(answers));
    // Without a place to keep them, too.
    for (int i = 0; i < 100; ++i) {
      auto copy = question;
      b.take(Time(10'000'000'000), copy, {});
    }
    EXPECT_EQ(b.counts().drops(Drop::kAnswerLimited), 10000U - static_cast<unsigned>(answers) + 68);
  }
}

TEST(Framing, IgnoresQuestionsForOthersAndFromRouters) {
  Framing asker(config(1), kMacA), b(config(2), kMacB);
  ASSERT_TRUE(asker.add_peer(ip("10.0.0.3")).ok());
  auto question = discovery(asker, Time(0));
  b.take(Time(0), question, {});
  EXPECT_EQ(b.counts().drops(Drop::kForeignAddress), 1U);
  Framing six(config(1), kMacA);
  ASSERT_TRUE(six.add_peer(ip("fd00::2")).ok());
  question = discovery(six, Time(0));
  store8(&question[kEthernetBytes + kVlanTagBytes + 7], 254);  // a router was between
  b.take(Time(0), question, {});
  EXPECT_EQ(b.counts().drops(Drop::kBadNeighbour), 1U);
  EXPECT_TRUE(discovery(b, Time(0)).empty());
}

TEST(Framing, AnswersWhoAsksWhetherAnAddressIsTaken) {
  Framing b(config(2), kMacB);
  const NeighbourMessage duplicate{.subject = ip("fd00::2"), .sender = {.bytes = {}, .v6 = true}, .mac = kMacA};
  std::vector<std::byte> frame(kMaxDiscoveryBytes);
  frame.resize(write_question({kMacA, std::nullopt, 0}, duplicate.sender, duplicate.subject, std::nullopt, frame));
  // Its source option must not be there, but does no harm; its source is nobody's.
  b.take(Time(0), frame, {});
  auto answer = discovery(b, Time(0));
  ASSERT_FALSE(answer.empty());
  EXPECT_EQ(load_mac(answer.data()), (MacAddress{0x33, 0x33, 0, 0, 0, 1}));
}

TEST(PortConfig, IsChecked) {
  EXPECT_TRUE(check(config(1)).ok());
  const auto refused = [](auto change) {
    PortConfig wrong = config(1);
    change(wrong);
    return check(wrong).to_string();
  };
  EXPECT_THAT(refused([](PortConfig& c) { c.device.clear(); }), HasSubstr("no device"));
  EXPECT_THAT(refused([](PortConfig& c) { c.udp_port = 0; }), HasSubstr("UDP port"));
  EXPECT_THAT(refused([](PortConfig& c) { c.queues.clear(); }), HasSubstr("1 to 9 transmit queues"));
  EXPECT_THAT(refused([](PortConfig& c) { c.queues.resize(10); }), HasSubstr("1 to 9 transmit queues"));
  EXPECT_THAT(refused([](PortConfig& c) { c.queues[0].dscp = 64; }), HasSubstr("DSCP 64"));
  EXPECT_THAT(refused([](PortConfig& c) { c.vlan = 4095; }), HasSubstr("no VLAN 4095"));
  EXPECT_THAT(refused([](PortConfig& c) { c.mtu = 1000; }), HasSubstr("MTU of 1000"));
  EXPECT_THAT(refused([](PortConfig& c) { c.queue_packets = 1; }), HasSubstr("too short"));
  EXPECT_THAT(refused([](PortConfig& c) { c.addresses[0].prefix = 33; }), HasSubstr("33 bits"));
  EXPECT_THAT(refused([](PortConfig& c) { c.addresses[0].gateway = ip("10.0.1.1"); }), HasSubstr("no neighbour"));
  EXPECT_THAT(refused([](PortConfig& c) { c.addresses.push_back(c.addresses[0]); }), HasSubstr("twice"));
  EXPECT_THAT(refused([](PortConfig& c) {
                c.neighbours = {{ip("10.0.0.2"), kBroadcastMac}};
              }),
              HasSubstr("no neighbour"));
  EXPECT_THAT(refused([](PortConfig& c) { c.max_peers = 0; }), HasSubstr("max_peers"));
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
