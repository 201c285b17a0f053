// What stands in a ring in front of every payload. Pure; every byte is checked, because a peer may write anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/protocol/frame.h"

namespace tensorlane::local {

// A frame, and where its payload is.
struct Record {
  enum class Payload : std::uint32_t {
    kBehind = 1,  // follows in the ring
    kStays = 2,   // lies at `address` of the sender's memory, unchanged until the frame has been taken from the ring
  };
  Payload payload = Payload::kBehind;
  std::uint64_t address = 0;
  protocol::FrameHeader header;
};
inline constexpr std::size_t kRecordBytes = 16 + protocol::kFrameHeaderBytes;
using RecordBytes = std::array<std::byte, kRecordBytes>;

// Shorter payloads are copied through the ring: a system call costs more.
inline constexpr std::size_t kStayBytes = std::size_t{16} << 10;

void encode_record(const Record& record, RecordBytes& out);
// Errors: those of decode_frame(); kCorrupt for what no sender of ours writes.
Result<Record> decode_record(const RecordBytes& in);

}  // namespace tensorlane::local
