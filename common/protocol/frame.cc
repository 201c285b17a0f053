#include "common/protocol/frame.h"

#include <fmt/format.h>
#include <isa-l.h>

#include <bit>
#include <cstring>

#include "common/protocol/vector_state.h"

namespace tensorlane::protocol {
namespace {

static_assert(std::endian::native == std::endian::little, "the frame header is little-endian on the wire");

// The layout on the wire. Every field is naturally aligned, so there is no padding.
struct Wire {
  std::uint32_t magic;
  std::uint8_t version, type, cls, flags;
  std::uint64_t job;
  std::uint32_t epoch, payload_bytes;
  std::uint32_t grant, tensor;
  std::uint64_t sequence;
  std::uint64_t offset;
  std::uint32_t slice, aux;
  std::uint32_t payload_crc, header_crc;
};
static_assert(sizeof(Wire) == kFrameHeaderBytes);

constexpr std::size_t kCrcOffset = offsetof(Wire, header_crc);

Status corrupt(std::string what) {
  return {Code::kCorrupt, std::move(what), "frame header",
          "check that both ends run the same tensorlane version and speak to its ports only"};
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  // ISA-L's function leaves out the initial and final inversion and takes no const.
  auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  const std::uint32_t crc = ~crc32_iscsi(data, static_cast<int>(bytes.size()), ~seed);
  if (bytes.size() > kFrameHeaderBytes) clear_upper_halves();  // ISA-L does not, and uses none for less
  return crc;
}

void encode_frame(const FrameHeader& h, std::span<std::byte, kFrameHeaderBytes> out) {
  Wire wire{kFrameMagic,
            kFrameVersion,
            static_cast<std::uint8_t>(h.type),
            h.cls.value,
            h.flags,
            h.job.value,
            h.epoch.value,
            h.payload_bytes,
            h.grant,
            h.tensor.value,
            h.sequence.value,
            h.offset,
            h.slice,
            h.aux,
            h.payload_crc,
            0};
  std::memcpy(out.data(), &wire, sizeof wire);
  wire.header_crc = crc32c(std::span<const std::byte>(out.data(), kCrcOffset));
  std::memcpy(out.data() + kCrcOffset, &wire.header_crc, sizeof wire.header_crc);
}

Result<FrameHeader> decode_frame(std::span<const std::byte, kFrameHeaderBytes> in) {
  Wire w;
  std::memcpy(&w, in.data(), sizeof w);
  if (w.magic != kFrameMagic)
    return corrupt(fmt::format("bad frame magic {:#010x}, expected {:#010x}", w.magic, kFrameMagic));
  if (w.version != kFrameVersion) {
    return Status(Code::kVersionMismatch,
                  fmt::format("frame version {}, this daemon speaks {}", w.version, kFrameVersion), "frame header",
                  "install the same tensorlane version on every host");
  }
  const std::uint32_t crc = crc32c(in.first<kCrcOffset>());
  if (crc != w.header_crc) return corrupt(fmt::format("bad header CRC {:#010x}, computed {:#010x}", w.header_crc, crc));
  if (w.type < 1 || w.type > static_cast<std::uint8_t>(kLastFrameType))
    return corrupt(fmt::format("unknown frame type {}", w.type));
  if (w.flags & ~(kFlagPayloadCrc | kFlagEager | kFlagAck | kFlagInParts | kFlagMessage))
    return corrupt(fmt::format("unknown frame flags {:#04x}", w.flags));
  if (w.payload_bytes > kMaxOperation.value) {
    return corrupt(fmt::format("payload of {} bytes, at most {} are allowed", w.payload_bytes, kMaxOperation.value));
  }
  const auto type = static_cast<FrameType>(w.type);
  if (type != FrameType::kData && w.payload_bytes != 0)
    return corrupt(fmt::format("frame type {} with a payload of {} bytes", w.type, w.payload_bytes));
  return FrameHeader{type,
                     w.flags,
                     ClassId(w.cls),
                     JobId(w.job),
                     Epoch(w.epoch),
                     w.payload_bytes,
                     w.grant,
                     TensorId(w.tensor),
                     Sequence(w.sequence),
                     w.offset,
                     w.slice,
                     w.aux,
                     w.payload_crc};
}

}  // namespace tensorlane::protocol
