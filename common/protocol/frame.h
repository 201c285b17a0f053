// The frame header between daemons: 64 bytes, little-endian, in front of every message on a flow.
//
// A receiver reads a header, checks it (decode_frame), asks the landing table where the payload goes, and reads the
// payload straight to that place. A header that fails its checks closes the flow: a stream that is out of step cannot
// be trusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::protocol {

inline constexpr std::uint32_t kFrameMagic = 0x314e4c54;  // "TLN1"
inline constexpr std::uint8_t kFrameVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 64;

// What a frame says. kData alone has a payload. kReady, kRts, kGrant, kCredit, kOffer and kAgreed travel in the control
// class (law 10).
enum class FrameType : std::uint8_t {
  kReady = 1,  // my contribution to (tensor, sequence) exists; `grant` is where its result may land with me (laws 2,
               // 4). With kFlagInParts: it has begun, and a kRts follows for each slice of my own data when that exists
  kRts = 2,    // the partial sum, or my part, of `slice` of (tensor, sequence) exists and can be fetched by a grant
  kGrant = 3,  // send your part of `slice` of (tensor, sequence) under `grant`
  kData = 4,   // payload for `grant` at `offset`; with kFlagEager: a whole contribution, unasked, paid with one credit.
               // Then `grant` = the prepaid slot it fills + 1, and `aux` = the sender's result grant (as kReady would
               // have said), or 0
  kCredit = 5,  // `aux` eager credits come back: the slots whose bits are set in `offset`
  // Of transports that resume flows, to each other; no sink sees them, and they are not counted as frames of the flow:
  kDelivered = 6,  // I have delivered the first `offset` frames of this flow (daemon/transport/ledger)
  kGoodbye = 7,    // I close the flow: it is not lost
  // Of jobs whose plan says Ordering::kNegotiated: bit i of `offset` is tensor 64 * `slice` + i.
  kOffer = 8,   // to the leader: these could begin here
  kAgreed = 9,  // from the leader: these can begin on all hosts, and begin
  // Of messages between two ranks (daemon/engine/messages), in the control class:
  kMessage = 10,  // rank `tensor` has a message for rank `slice`: tag `sequence`, `offset` elements of dtype `aux`;
                  // the sender calls it `grant`
  kMessageGrant = 11,    // send what you call `aux`, under `grant`
  kMessageRefused = 12,  // what you call `aux` is no such message: the receive has `offset` elements of dtype `slice`
};

// The low bits of a grant are an index that is used again, the others tell its generations apart.
inline constexpr std::uint32_t kGrantIndexBits = 20;

inline constexpr std::uint8_t kFlagPayloadCrc = 1;  // payload_crc is the CRC32C of the payload
inline constexpr std::uint8_t kFlagEager = 2;
inline constexpr std::uint8_t kFlagAck =
    4;  // of transports that resume flows: acknowledge (kDelivered) soon, somebody waits for it
inline constexpr std::uint8_t kFlagInParts = 8;   // of kReady
inline constexpr std::uint8_t kFlagMessage = 16;  // of kData: payload of a message, in order
inline constexpr FrameType kLastFrameType = FrameType::kMessageRefused;

// A header in host order. Fields a type does not use are zero.
struct FrameHeader {
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  ClassId cls;  // class of the flow it travels on
  JobId job;
  Epoch epoch;
  std::uint32_t payload_bytes = 0;  // at most kMaxOperation
  std::uint32_t grant = 0;          // chosen by the receiver of the payload; 0 is never a grant
  TensorId tensor;
  Sequence sequence;
  std::uint64_t offset = 0;  // of the payload's first byte, from the start of what the grant covers
  std::uint32_t slice = 0;
  std::uint32_t aux = 0;
  std::uint32_t payload_crc = 0;

  bool operator==(const FrameHeader&) const = default;
};

// Whether it belongs to a message between two ranks, and not to an operation.
constexpr bool is_of_message(const FrameHeader& header) {
  return (header.type >= FrameType::kMessage && header.type <= FrameType::kMessageRefused) ||
         (header.type == FrameType::kData && (header.flags & kFlagMessage) != 0);
}

// The grant that a frame gives its receiver, or 0.
constexpr std::uint32_t given_grant(const FrameHeader& header) {
  const bool eager = header.type == FrameType::kData && (header.flags & kFlagEager) != 0;
  if (header.type == FrameType::kReady || header.type == FrameType::kGrant) return header.grant;
  return eager ? header.aux : 0;
}

// CRC32C (Castagnoli) of `bytes`, continuing from `seed` (0 to start).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// Writes `header` with magic, version and header CRC. No errors.
void encode_frame(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);

// Reads and checks magic, version, header CRC, type, flags and payload length, in that order. Whose job and epoch it
// must be, and whether the grant exists, is for the caller to check. Errors: kCorrupt, kVersionMismatch, with the
// values in the text.
Result<FrameHeader> decode_frame(std::span<const std::byte, kFrameHeaderBytes> in);

}  // namespace tensorlane::protocol
