// Frames as a port writes and reads them, against every way in which a frame can be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

struct FrameTest : ::testing::TestWithParam<bool> {
  FrameTest() : a(config(1), kMacA), b(config(2), kMacB) {
    peer = a.add_peer(ip(GetParam() ? "fd00::2" : "10.0.0.2")).value();
    introduce(a, b, Time(0));
  }
  std::vector<std::byte> frame(std::string_view payload = "payload", std::size_t queue = 0) {
    return datagram(a, queue, {peer, 50000}, payload);
  }
  // What b says of a frame; kDrops: it took it.
  std::size_t verdict(std::vector<std::byte> bytes, const FrameNotes& notes = {}) {
    const auto before = b.counts().dropped;
    const auto received = b.take(Time(1), bytes, notes);
    for (std::size_t i = 0; i < kDrops; ++i)
      if (b.counts().dropped[i] != before[i]) return i;
    return received ? kDrops : kDrops + 1;
  }
  static std::size_t drop(Drop drop) { return static_cast<std::size_t>(drop); }

  static constexpr std::size_t kIp = kEthernetBytes + kVlanTagBytes;
  std::size_t ip_bytes() const { return GetParam() ? kIpv6Bytes : kIpv4Bytes; }
  // After a change to an IPv4 header.
  static void mend_ip(std::vector<std::byte>& bytes) {
    if (load8(&bytes[kIp]) >> 4 != 4) return;
    store16(&bytes[kIp + 10], 0);
    store_checksum(&bytes[kIp + 10], add_to_sum(0, {&bytes[kIp], kIpv4Bytes}));
  }

  Framing a, b;
  PeerId peer;
};

TEST_P(FrameTest, BringsPayloadAndTags) {
  for (std::size_t queue = 0; queue < 3; ++queue) {
    auto bytes = frame("hello", queue);
    const auto received = b.take(Time(1), bytes, {});
    ASSERT_TRUE(received);
    EXPECT_EQ(text(received->payload), "hello");
    EXPECT_EQ(received->from, ip(GetParam() ? "fd00::1" : "10.0.0.1"));
    EXPECT_EQ(received->source_port, 50000);
    EXPECT_EQ(received->dscp, a.config().queues[queue].dscp);
    EXPECT_EQ(received->pcp, a.config().queues[queue].pcp);
    EXPECT_TRUE(received->tagged);
    EXPECT_FALSE(received->congestion);
  }
}

TEST_P(FrameTest, TakesEveryLength) {
  for (std::size_t bytes = 0; bytes <= 1500 - ip_bytes() - kUdpBytes; ++bytes)
    ASSERT_EQ(verdict(frame(std::string(bytes, static_cast<char>(bytes)))), kDrops) << bytes;
}

TEST_P(FrameTest, TakesAFrameThatWasPadded) {
  auto bytes = frame("x");
  bytes.resize(bytes.size() + 20);
  const auto received = b.take(Time(1), bytes, {});
  ASSERT_TRUE(received);
  EXPECT_EQ(received->payload.size(), 1U);
}

// Which no host of ours writes.
TEST_P(FrameTest, TakesAHeaderWithOptions) {
  if (GetParam()) return;  // IPv6 has them elsewhere
  auto bytes = frame();
  const std::array<std::byte, 4> none{std::byte{1}, std::byte{1}, std::byte{1}, std::byte{0}};
  bytes.insert(bytes.begin() + kIp + kIpv4Bytes, none.begin(), none.end());
  store8(&bytes[kIp], 0x46);
  store16(&bytes[kIp + 2], static_cast<std::uint16_t>(load16(&bytes[kIp + 2]) + none.size()));
  store16(&bytes[kIp + 10], 0);
  store_checksum(&bytes[kIp + 10], add_to_sum(0, {&bytes[kIp], kIpv4Bytes + none.size()}));
  EXPECT_EQ(verdict(bytes), kDrops);
}

TEST_P(FrameTest, SeesAMarkOfCongestion) {
  auto bytes = frame();
  const std::size_t at = kIp + 1;
  bytes[at] |= GetParam() ? std::byte{0x30} : std::byte{3};
  mend_ip(bytes);
  const auto received = b.take(Time(1), bytes, {});
  ASSERT_TRUE(received);
  EXPECT_TRUE(received->congestion);
  EXPECT_EQ(received->dscp, 46);
}

TEST_P(FrameTest, NoticesEveryChangedByte) {
  const auto right = frame();
  // Ethernet's source is nobody's to check. TTL, traffic class and flow label of IPv6 have no checksum.
  for (std::size_t i = 0; i < right.size(); ++i) {
    auto bytes = right;
    bytes[i] ^= std::byte{0x55};
    const bool free =
        (i >= 6 && i < 12) || i == 14 || (GetParam() && (i == kIp + 1 || i == kIp + 2 || i == kIp + 3 || i == kIp + 7));
    if (!free) {
      EXPECT_LT(verdict(bytes), kDrops) << i;
    }
  }
}

TEST_P(FrameTest, NamesWhatIsWrong) {
  const auto with = [&](std::size_t at, std::uint8_t value) {
    auto bytes = frame();
    store8(&bytes[at], value);
    mend_ip(bytes);
    return verdict(bytes);
  };
  const std::size_t udp = kIp + ip_bytes();
  EXPECT_EQ(with(5, 9), drop(Drop::kForeignMac));
  EXPECT_EQ(with(11, 2), drop(Drop::kOwn));
  EXPECT_EQ(with(15, 9), drop(Drop::kForeignVlan));
  EXPECT_EQ(with(16, 0x99), drop(Drop::kForeignProtocol));
  EXPECT_EQ(with(udp + 3, 1), drop(Drop::kForeignPort));
  EXPECT_EQ(with(udp + 5, 200), drop(Drop::kBadLength));
  EXPECT_EQ(with(udp + 5, 9), drop(Drop::kBadLength));
  EXPECT_EQ(with(udp + 6, 1), drop(Drop::kUdpChecksum));
  auto unproved = frame();
  store16(&unproved[udp + 6], 0);
  EXPECT_EQ(verdict(unproved), drop(Drop::kUdpChecksum)) << "IPv4 may leave it out, and no port of ours does";
  if (GetParam()) {
    EXPECT_EQ(with(kIp + 5, 200), drop(Drop::kBadLength));
    EXPECT_EQ(with(kIp + 6, kProtocolFragment), drop(Drop::kFragment));
    EXPECT_EQ(with(kIp + 6, 6), drop(Drop::kForeignProtocol));
    EXPECT_EQ(with(kIp + 8, 0xff), drop(Drop::kBadSource));
    EXPECT_EQ(with(kIp + 39, 9), drop(Drop::kForeignAddress));
    return;
  }
  EXPECT_EQ(with(kIp, 0x4f), drop(Drop::kBadLength));
  EXPECT_EQ(with(kIp, 0x44), drop(Drop::kBadLength));
  EXPECT_EQ(with(kIp + 3, 200), drop(Drop::kBadLength));
  EXPECT_EQ(with(kIp + 3, 19), drop(Drop::kBadLength));
  EXPECT_EQ(with(kIp + 6, 0x20), drop(Drop::kFragment));
  EXPECT_EQ(with(kIp + 7, 1), drop(Drop::kFragment));
  EXPECT_EQ(with(kIp + 9, 6), drop(Drop::kForeignProtocol));
  EXPECT_EQ(with(kIp + 12, 224), drop(Drop::kBadSource));
  EXPECT_EQ(with(kIp + 19, 9), drop(Drop::kForeignAddress));
  auto bytes = frame();
  store8(&bytes[kIp + 10], 1);
  EXPECT_EQ(verdict(bytes), drop(Drop::kIpChecksum));
}

TEST_P(FrameTest, BelievesTheNicAboutChecksums) {
  auto bytes = frame();
  store8(&bytes[kIp + ip_bytes() + 6], 1);
  EXPECT_EQ(verdict(bytes, {.udp_verified = true}), kDrops);
  EXPECT_EQ(verdict(bytes, {.ip_verified = true}), drop(Drop::kUdpChecksum));
}

TEST_P(FrameTest, TakesTheTagFromTheNic) {
  auto bytes = frame();
  const std::uint16_t tci = load16(&bytes[14]);
  EXPECT_EQ(verdict(bytes, {.stripped_tci = tci}), drop(Drop::kForeignVlan)) << "two tags";
  bytes.erase(bytes.begin() + 12, bytes.begin() + 16);
  const auto received = b.take(Time(1), bytes, {.stripped_tci = tci});
  ASSERT_TRUE(received);
  EXPECT_EQ(received->pcp, 6);
  EXPECT_TRUE(received->tagged);
  EXPECT_EQ(verdict(bytes), kDrops) << "no tag";
  EXPECT_EQ(verdict(bytes, {.stripped_tci = 7}), drop(Drop::kForeignVlan));
}

TEST_P(FrameTest, TakesNoFrameThatWasCut) {
  const auto whole = frame();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_LT(verdict({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)}), kDrops) << bytes;
}

TEST_P(FrameTest, LeavesChecksumsToTheNic) {
  std::vector<std::byte> memory(kMaxHeaderBytes + 5);
  const std::size_t header = a.write(0, {peer, 50000}, &memory[kMaxHeaderBytes], 5, {.ip = true, .udp = true});
  std::byte* const at = &memory[kMaxHeaderBytes - header] + kIp;
  if (!GetParam()) {
    EXPECT_EQ(load16(at + 10), 0);
  }
  std::uint16_t pseudo;
  std::memcpy(&pseudo, at + ip_bytes() + 6, sizeof pseudo);
  EXPECT_EQ(pseudo, fold_sum(pseudo_header_sum(ip(GetParam() ? "fd00::1" : "10.0.0.1"),
                                               ip(GetParam() ? "fd00::2" : "10.0.0.2"), kProtocolUdp, 13)));
}

INSTANTIATE_TEST_SUITE_P(Family, FrameTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "IPv6" : "IPv4"); });

TEST(Checksum, IsThatOfTheStandard) {
  // The example of RFC 1071, section 3, and sums word by word.
  const std::array<std::uint8_t, 8> example{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  std::uint16_t folded = fold_sum(add_to_sum(0, std::as_bytes(std::span(example))));
  std::byte stored[2];
  std::memcpy(stored, &folded, 2);
  EXPECT_EQ(load16(stored), 0xddf2);
  std::mt19937 random(1);
  std::vector<std::byte> bytes(300);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < length; ++i)
      sum += i % 2 == 0 ? std::uint32_t{load8(&bytes[i])} << 8 : std::uint32_t{load8(&bytes[i])};
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    folded = fold_sum(add_to_sum(0, {bytes.data(), length}));
    std::memcpy(stored, &folded, 2);
    EXPECT_EQ(load16(stored), sum) << length;
  }
}

TEST(Addresses, AreReadAndWritten) {
  for (const char* const text : {"10.0.0.1", "fd00::1", "::ffff:10.0.0.1"}) EXPECT_EQ(to_string(ip(text)), text);
  for (const char* const text : {"", "10.0.0", "10.0.0.256", "fd00::1::2", "host"})
    EXPECT_FALSE(parse_ip(text).ok()) << text;
  EXPECT_EQ(to_string(parse_mac("02:aB:00:00:00:fe").value()), "02:ab:00:00:00:fe");
  for (const char* const text : {"", "02:00:00:00:00", "02-00-00-00-00-01", "0g:00:00:00:00:01", "ff:ff:ff:ff:ff:ff",
                                 "00:00:00:00:00:00", "02:00:00:00:00:01:"})
    EXPECT_FALSE(parse_mac(text).ok()) << text;
  EXPECT_TRUE(same_network(ip("10.0.1.7"), ip("10.0.0.7"), 23));
  EXPECT_FALSE(same_network(ip("10.0.1.7"), ip("10.0.0.7"), 24));
  EXPECT_TRUE(same_network(ip("1.2.3.4"), ip("9.9.9.9"), 0));
  EXPECT_FALSE(same_network(ip("fd00::"), ip("0.0.0.0"), 0));
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
