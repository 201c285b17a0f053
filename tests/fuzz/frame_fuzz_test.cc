// Headers by the hundred thousand, from a fixed seed: each reads back, and up to three changed bytes are always
// noticed. What decoding makes of bytes that nobody encoded is frame_fuzzer.cc's.
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
  h.type = static_cast<FrameType>(1 + random() % 7);
  h.flags = static_cast<std::uint8_t>(random() % 8);
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

}  // namespace
}  // namespace tensorlane::protocol
