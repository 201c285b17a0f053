#include "common/protocol/frame.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::protocol {
namespace {

using ::testing::HasSubstr;
using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader full_header() {
  FrameHeader h;
  h.type = FrameType::kData;
  h.flags = kFlagPayloadCrc | kFlagEager;
  h.cls = ClassId(3);
  h.job = JobId(0x0102030405060708);
  h.epoch = Epoch(0x11121314);
  h.payload_bytes = 0x00031234;
  h.grant = 0x21222324;
  h.tensor = TensorId(0x31323334);
  h.sequence = Sequence(0x4142434445464748);
  h.offset = 0x5152535455565758;
  h.slice = 0x61626364;
  h.aux = 0x71727374;
  h.payload_crc = 0x81828384;
  return h;
}

HeaderBytes encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  encode_frame(header, bytes);
  return bytes;
}

// Writes a field and makes the header's CRC right again.
template <typename T>
HeaderBytes with(const FrameHeader& header, std::size_t at, T value) {
  HeaderBytes bytes = encoded(header);
  std::memcpy(bytes.data() + at, &value, sizeof value);
  const std::uint32_t crc = crc32c(std::span<const std::byte>(bytes).first(kFrameHeaderBytes - 4));
  std::memcpy(bytes.data() + kFrameHeaderBytes - 4, &crc, 4);
  return bytes;
}

TEST(Frame, ReadsBackWhatItWrote) {
  const auto back = decode_frame(encoded(full_header()));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, full_header());
  EXPECT_TRUE(decode_frame(encoded(FrameHeader{})).ok());
}

// The layout is a contract between versions: these bytes may never change under version 1.
TEST(Frame, LiesOnTheWireAsVersion1Says) {
  const unsigned char want[60] = {'T',  'L',  'N',  '1',  1,    4,    3,    3,    8,    7,    6,    5,
                                  4,    3,    2,    1,    0x14, 0x13, 0x12, 0x11, 0x34, 0x12, 0x03, 0,
                                  0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31, 0x48, 0x47, 0x46, 0x45,
                                  0x44, 0x43, 0x42, 0x41, 0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51,
                                  0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71, 0x84, 0x83, 0x82, 0x81};
  const HeaderBytes bytes = encoded(full_header());
  for (std::size_t i = 0; i < sizeof want; ++i) EXPECT_EQ(static_cast<unsigned char>(bytes[i]), want[i]) << i;
}

// Test vectors of RFC 3720, B.4.
TEST(Frame, Crc32cIsCastagnolis) {
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  std::vector<std::byte> rising(32);
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(std::span(rising).subspan(7), crc32c(std::span(rising).first(7))), 0x46dd794eu);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Frame, SaysWhatIsWrong) {
  const FrameHeader good = full_header();
  const auto error = [](const HeaderBytes& bytes) {
    const auto result = decode_frame(bytes);
    return result.ok() ? "accepted" : result.status().to_string();
  };
  EXPECT_THAT(error(with(good, 0, 0xdeadbeefu)), HasSubstr("bad frame magic 0xdeadbeef, expected 0x314e4c54"));
  EXPECT_THAT(error(with(good, 4, std::uint8_t{2})), HasSubstr("frame version 2, this daemon speaks 1"));
  EXPECT_THAT(error(with(good, 5, std::uint8_t{0})), HasSubstr("unknown frame type 0"));
  EXPECT_THAT(error(with(good, 7, std::uint8_t{0x80})), HasSubstr("unknown frame flags 0x80"));
  EXPECT_THAT(error(with(good, 20, std::uint32_t{262145})),
              HasSubstr("payload of 262145 bytes, at most 262144 are allowed"));
  EXPECT_THAT(error(with(good, 5, static_cast<std::uint8_t>(FrameType::kGrant))),
              HasSubstr("with a payload of 201268 bytes"));
  HeaderBytes broken = encoded(good);
  broken[30] ^= std::byte{4};
  EXPECT_THAT(error(broken), HasSubstr("bad header CRC 0x"));
  EXPECT_EQ(decode_frame(with(good, 4, std::uint8_t{2})).status().code(), Code::kVersionMismatch);
  EXPECT_EQ(decode_frame(broken).status().code(), Code::kCorrupt);
}

TEST(Frame, FindsEveryChangedBit) {
  const HeaderBytes good = encoded(full_header());
  for (std::size_t bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    HeaderBytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(decode_frame(bytes).ok()) << "bit " << bit;
  }
}

}  // namespace
}  // namespace tensorlane::protocol
