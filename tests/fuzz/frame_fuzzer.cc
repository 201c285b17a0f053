// Frame headers, as they come and with a CRC that an attacker has computed: what is accepted keeps the promises of
// frame.h and is encoded back to the same bytes.
#include "common/protocol/frame.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using protocol::FrameHeader;
using protocol::FrameType;
using protocol::kFrameHeaderBytes;
using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

void check(const HeaderBytes& bytes) {
  const Result<FrameHeader> header = protocol::decode_frame(bytes);
  if (!header.ok()) {
    expect_explained(header.status());
    TL_ASSERT(header.status().code() == Code::kCorrupt || header.status().code() == Code::kVersionMismatch);
    return;
  }
  TL_ASSERT(header->type >= FrameType::kReady && header->type <= protocol::kLastFrameType);
  TL_ASSERT((header->flags & ~(protocol::kFlagPayloadCrc | protocol::kFlagEager | protocol::kFlagAck |
                               protocol::kFlagInParts | protocol::kFlagMessage)) == 0);
  TL_ASSERT(header->payload_bytes <= kMaxOperation.value);
  TL_ASSERT(header->type == FrameType::kData || header->payload_bytes == 0);
  HeaderBytes again;
  protocol::encode_frame(*header, again);
  TL_ASSERT(again == bytes);
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  fuzz::Input input(data, size);
  auto bytes = input.take<fuzz::HeaderBytes>();
  fuzz::check(bytes);
  const std::uint32_t crc = protocol::crc32c(std::span(bytes).first(bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
  fuzz::check(bytes);
  return 0;
}
