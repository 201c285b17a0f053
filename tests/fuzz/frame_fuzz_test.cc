// Headers changed at random, from a fixed seed: decoding never crashes and never accepts what breaks a promise of
// frame.h.
#include <algorithm>
#include <cstring>
#include <random>

#include "common/protocol/frame.h"
#include "gtest/gtest.h"

namespace tensorlane::protocol {
namespace {

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader random_header(std::mt19937_64& random) {
  FrameHeader h;
  h.type = static_cast<FrameType>(1 + random() % 5);
  h.flags = static_cast<std::uint8_t>(random() % 4);
  h.cls = ClassId(static_cast<std::uint8_t>(random()));
  h.job = JobId(random());
  h.epoch = Epoch(static_cast<std::uint32_t>(random()));
  h.payload_bytes = h.type == FrameType::kData ? static_cast<std::uint32_t>(random() % (kMaxOperation.value + 1)) : 0;
  h.grant = static_cast<std::uint32_t>(random());
  h.tensor = TensorId(static_cast<std::uint32_t>(random()));
  h.sequence = Sequence(random());
  h.offset = random();
  h.slice = static_cast<std::uint32_t>(random());
  h.aux = static_cast<std::uint32_t>(random());
  h.payload_crc = static_cast<std::uint32_t>(random());
  return h;
}

void seal(HeaderBytes& bytes) {
  const std::uint32_t crc = crc32c(std::span<const std::byte>(bytes).first(kFrameHeaderBytes - 4));
  std::memcpy(bytes.data() + kFrameHeaderBytes - 4, &crc, 4);
}

TEST(FrameFuzz, GoodHeadersReadBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const FrameHeader header = random_header(random);
    HeaderBytes bytes;
    encode_frame(header, bytes);
    const auto back = decode_frame(bytes);
    ASSERT_TRUE(back.ok()) << i << ": " << back.status().to_string();
    ASSERT_EQ(*back, header) << i;
  }
}

TEST(FrameFuzz, ChangedHeadersAreRefused) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 100000; ++i) {
    HeaderBytes good, bytes;
    encode_frame(random_header(random), good);
    bytes = good;
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (bytes != good) {
      ASSERT_FALSE(decode_frame(bytes).ok()) << i;
    }
  }
}

// An attacker can compute a CRC: what it then gets accepted must still be within the promises.
TEST(FrameFuzz, SealedHeadersKeepThePromises) {
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int i = 0; i < 100000; ++i) {
    HeaderBytes bytes;
    encode_frame(random_header(random), bytes);
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    seal(bytes);
    const auto header = decode_frame(bytes);
    if (!header.ok()) continue;
    ++accepted;
    ASSERT_LE(header->payload_bytes, kMaxOperation.value);
    ASSERT_GE(static_cast<int>(header->type), 1);
    ASSERT_LE(static_cast<int>(header->type), 5);
    ASSERT_TRUE(header->type == FrameType::kData || header->payload_bytes == 0);
    ASSERT_EQ(header->flags & ~(kFlagPayloadCrc | kFlagEager), 0);
    HeaderBytes again;
    encode_frame(*header, again);
    ASSERT_EQ(again, bytes) << "a field was lost";
  }
  EXPECT_GT(accepted, 50000);
}

TEST(FrameFuzz, NoiseIsRefused) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100000; ++i) {
    HeaderBytes bytes;
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (i % 2) std::memcpy(bytes.data(), &kFrameMagic, 4);
    if (i % 4 == 3) bytes[4] = std::byte{kFrameVersion};
    ASSERT_FALSE(decode_frame(bytes).ok());
  }
}

}  // namespace
}  // namespace tensorlane::protocol
