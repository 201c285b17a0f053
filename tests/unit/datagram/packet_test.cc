#include "daemon/transport/datagram/packet.h"

#include <gtest/gtest.h>
#include <sodium.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/transport/datagram/seal.h"

namespace tensorlane::datagram {
namespace {

std::vector<std::byte> data_packet(const Head& head, const Data& data, std::size_t bytes) {
  std::vector<std::byte> packet(sizeof head + sizeof data + bytes, std::byte{7});
  write_data(head, data, packet.data());
  return packet;
}

TEST(Packet, DataIsReadAsItWasWritten) {
  const Head head{.association = 5, .slot = 2, .number = 77};
  const auto packet = data_packet(head, {1000, 1300}, 200);
  ReadPacket read;
  ASSERT_TRUE(read_packet(packet, 0, &read));
  EXPECT_EQ(read.head.association, 5u);
  EXPECT_EQ(read.head.slot, 2);
  EXPECT_EQ(read.head.number, 77u);
  EXPECT_EQ(read.data.offset, 1000u);
  EXPECT_EQ(read.data.wanted, 1300u);
  EXPECT_EQ(read.bytes.size(), 200u);
}

TEST(Packet, APieceBeyondTheStreamIsNone) {
  ReadPacket read;
  EXPECT_TRUE(read_packet(data_packet({}, {1000, 1200}, 200), 0, &read));
  EXPECT_FALSE(read_packet(data_packet({}, {1000, 1199}, 200), 0, &read));
  EXPECT_FALSE(read_packet(data_packet({}, {1000, 999}, 0), 0, &read));
  EXPECT_FALSE(read_packet(data_packet({}, {~std::uint64_t{0} - 10, ~std::uint64_t{0}}, 200), 0, &read));
}

std::vector<std::byte> ack_packet(const std::vector<Range>& come, std::size_t room = 1400) {
  std::vector<std::byte> packet(room);
  const Head head{.association = 9, .slot = kAckSlot, .number = 3};
  packet.resize(write_ack(head, {.credit = 101, .marked = 2, .delay_us = 40}, come, packet));
  return packet;
}

TEST(Packet, AcknowledgementsAreReadAsTheyWereWritten) {
  ReadPacket read;
  ASSERT_TRUE(read_packet(ack_packet({{0, 3}, {5, 6}, {10, 20}}), 0, &read));
  EXPECT_EQ(read.head.association, 9u);
  EXPECT_EQ(read.head.slot, kAckSlot);
  EXPECT_EQ(read.head.number, 3u);
  EXPECT_EQ(read.ack.largest, 19u);
  EXPECT_EQ(read.ack.credit, 101u);
  EXPECT_EQ(read.ack.marked, 2u);
  EXPECT_EQ(read.ack.delay_us, 40u);
  ASSERT_EQ(read.ack.ranges, 3u);
  EXPECT_EQ(read.ranges[0], (Range{10, 20}));
  EXPECT_EQ(read.ranges[1], (Range{5, 6}));
  EXPECT_EQ(read.ranges[2], (Range{0, 3}));
}

TEST(Packet, OfManyRangesTheHighestAreSaidAsThereIsRoom) {
  std::vector<Range> come;
  for (std::uint64_t i = 0; i < 50; ++i) come.push_back({i * 10, i * 10 + 1});
  ReadPacket read;
  ASSERT_TRUE(read_packet(ack_packet(come), 0, &read));
  ASSERT_EQ(read.ack.ranges, kMaxAckRanges);
  EXPECT_EQ(read.ranges[0], (Range{490, 491}));
  EXPECT_EQ(read.ranges[kMaxAckRanges - 1], (Range{340, 341}));
  ASSERT_TRUE(read_packet(ack_packet(come, sizeof(Head) + sizeof(Ack) + 2 * sizeof(AckRange) + 6), 0, &read));
  EXPECT_EQ(read.ack.ranges, 2u);
}

TEST(Packet, WhatMakesNoSenseIsNone) {
  ReadPacket read;
  const auto good = ack_packet({{4, 6}, {8, 9}});
  ASSERT_TRUE(read_packet(good, 0, &read));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_FALSE(read_packet(std::span(good).first(bytes), 0, &read)) << bytes;
  auto longer = good;
  longer.push_back(std::byte{1});
  EXPECT_FALSE(read_packet(longer, 0, &read));
  const auto changed = [&](std::size_t at, std::uint8_t to) {
    auto bad = good;
    bad[at] = std::byte{to};
    return read_packet(bad, 0, &read);
  };
  EXPECT_FALSE(changed(4, 1)) << "version";
  EXPECT_FALSE(changed(5, kAckSlot + 1)) << "slot";
  EXPECT_FALSE(changed(6, 1)) << "reserved";
  constexpr std::size_t kCount = sizeof(Head) + 28, kRanges = sizeof(Head) + sizeof(Ack);
  EXPECT_FALSE(changed(kCount, 0)) << "no range";
  EXPECT_FALSE(changed(kCount, 1)) << "fewer than there are";
  EXPECT_FALSE(changed(kCount, 3)) << "more than there are";
  EXPECT_FALSE(changed(kCount, kMaxAckRanges + 1)) << "too many ranges";
  EXPECT_FALSE(changed(kCount + 3, 1)) << "very many";
  EXPECT_FALSE(changed(kRanges, 1)) << "a gap before the first";
  EXPECT_FALSE(changed(kRanges + 4, 0)) << "an empty range";
  EXPECT_FALSE(changed(kRanges + 8, 0)) << "ranges that touch";
  EXPECT_FALSE(changed(kRanges + 8, 200)) << "numbers below 0";
}

TEST(Packet, RubbishNeverPasses) {
  std::mt19937 random(19);
  ReadPacket read;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % (i % 2 == 0 ? 256 : 4));
    if (read_packet(bytes, 0, &read) && read.head.slot != kAckSlot) {
      EXPECT_LE(read.bytes.size(), bytes.size());
    }
  }
}

class Sealed : public ::testing::TestWithParam<DataProtection> {
 protected:
  Sealed() {
    EXPECT_GE(sodium_init(), 0);
    cipher = GetParam() == DataProtection::kNone ? protect::Cipher::kNone : protect::best_of(protect::ciphers_here());
  }
  std::vector<std::byte> closed(Seal& seal, const Head& head, std::size_t bytes) {
    auto packet = data_packet(head, {0, 100'000}, bytes);
    packet.resize(packet.size() + seal.tag_bytes(), std::byte{7});
    seal.close(head, packet.data(), packet.size());
    return packet;
  }
  protect::Cipher cipher;
  protect::Key secret{std::byte{1}, std::byte{2}};
};

TEST_P(Sealed, OpensInAnyOrderAcrossKeys) {
  Seal seal(GetParam(), cipher, secret), other(GetParam(), cipher, secret);
  for (const std::uint64_t number : {5u, 1u << 20, 3u, (1u << 20) + 7, 4u}) {
    const Head head{.slot = 1, .number = number};
    auto packet = closed(seal, head, 300);
    ASSERT_EQ(other.open(head, packet), packet.size() - seal.tag_bytes() + seal.tag_before()) << number;
    EXPECT_EQ(packet[40], std::byte{7}) << "deciphered";
  }
}

TEST_P(Sealed, WhateverIsChangedIsNotRight) {
  Seal seal(GetParam(), cipher, secret);
  const Head head{.association = 4, .slot = 1, .number = 9};
  const auto good = closed(seal, head, 100);
  const std::size_t proved = GetParam() == DataProtection::kNone ? sizeof(Head) + sizeof(Data) : good.size();
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bad = good;
    bad[i] ^= std::byte{1};
    const auto changed = read_head(bad);
    const bool open = changed && seal.open(*changed, bad) > 0;
    EXPECT_EQ(open, i >= proved + seal.tag_before()) << i;
  }
  // At `none` the bytes of the piece are not proved.
  const std::size_t least = seal.tag_before() > 0 ? proved + seal.tag_before() : good.size();
  for (std::size_t bytes = 0; bytes < least; ++bytes) {
    auto shorter = good;
    shorter.resize(bytes);
    const auto found = read_head(shorter);
    if (found) {
      EXPECT_EQ(seal.open(*found, shorter), 0u) << bytes;
    }
  }
}

TEST_P(Sealed, AnotherSecretOrDirectionIsNotRight) {
  Seal seal(GetParam(), cipher, secret);
  protect::Key another = secret;
  another[31] ^= std::byte{1};
  Seal stranger(GetParam(), cipher, another);
  const Head head{.slot = 1, .number = 9};
  auto packet = closed(seal, head, 100);
  EXPECT_EQ(stranger.open(head, packet), 0u);
}

TEST_P(Sealed, HidesWhatItShould) {
  Seal seal(GetParam(), cipher, secret);
  const auto packet = closed(seal, {.slot = 1, .number = 9}, 100);
  EXPECT_EQ(packet[60] == std::byte{7}, GetParam() != DataProtection::kEncrypt);
}

INSTANTIATE_TEST_SUITE_P(Levels, Sealed,
                         ::testing::Values(DataProtection::kNone, DataProtection::kAuthenticate,
                                           DataProtection::kEncrypt));

}  // namespace
}  // namespace tensorlane::datagram
