// What queue pairs carry: messages of at most kMessageBytes, and the parameters of the handshake. Little-endian. Pure;
// every byte is checked, because a peer may send anything.
//
// A frame is one message, or one and more behind it:
//   kFrame   MessageHead, the frame header, the places of the grant that it gives (if any), and the first bytes of the
//            payload. With landed_at, the payload was written there before (by RDMA, on the same queue pair) and
//            nothing of it follows.
//   kMore    MessageHead and the next bytes of the payload
//   kCredit  MessageHead: only credits come back
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/rdma/connect_by.h"
#include "daemon/transport/rdma/gid.h"

namespace tensorlane::rdma {

inline constexpr std::uint8_t kMessageVersion = 1;
inline constexpr std::size_t kMessageBytes = 4096;
// Messages that a sender may have on their way before the receiver gives credits back.
inline constexpr std::uint32_t kCredits = 32;
// Receives beyond the credits, for kCredit messages, which need none. One is sent for half of the credits at least, so
// at most two are on their way; and one that says that the accepting end of a flow is up.
inline constexpr std::uint32_t kSpareReceives = 4;
inline constexpr std::size_t kMaxQueuePairs = 16;
// Pieces of memory behind one grant: a slice of 16 MiB in pages of 256 KiB.
inline constexpr std::size_t kMaxPlaces = 64;

enum class MessageKind : std::uint8_t { kFrame = 1, kMore = 2, kCredit = 3 };

struct MessageHead {
  MessageKind kind = MessageKind::kFrame;
  std::uint8_t places = 0;
  std::uint16_t credits = 0;  // that come back with this message
  std::uint32_t reserved = 0;
  std::uint64_t landed_at = 0;
};
static_assert(sizeof(MessageHead) == 16 && std::has_unique_object_representations_v<MessageHead>);

// A piece of memory behind a grant. The pieces of a grant in order are what its offsets count through.
struct Place {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t key = 0;
  std::uint32_t reserved = 0;

  bool operator==(const Place&) const = default;
};
static_assert(sizeof(Place) == 24 && std::has_unique_object_representations_v<Place>);

inline constexpr std::size_t kFrameOverhead = sizeof(MessageHead) + protocol::kFrameHeaderBytes;
static_assert(kFrameOverhead + kMaxPlaces * sizeof(Place) < kMessageBytes);

// A message as it arrived; the spans lie in it.
struct Message {
  MessageHead head;
  std::span<const std::byte> frame_header;  // kFrame: kFrameHeaderBytes
  std::span<const std::byte> places;        // kFrame: head.places of them
  std::span<const std::byte> payload;       // kFrame, kMore

  Place place(std::size_t i) const;
};

// Errors: kCorrupt, with the values in the text.
Result<Message> parse_message(std::span<const std::byte> bytes);

// What the ends tell each other in the handshake.
struct Parameters {
  std::uint8_t frame_version = protocol::kFrameVersion;
  std::uint8_t message_version = kMessageVersion;
  std::uint8_t queue_pairs = 1;
  std::uint8_t path_mtu = 3;  // ibv_mtu: 1 = 256 ... 5 = 4096
  std::uint32_t message_bytes = kMessageBytes;
  std::uint32_t credits = kCredits;
  ConnectBy connect_by = ConnectBy::kVerbs;
  std::uint8_t reserved = 0;
  std::uint16_t cm_port = 0;  // kCm: where this end takes requests of rdma_cm
  GidBytes gid{};
  struct Pair {
    std::uint32_t number = 0;        // 24 bits
    std::uint32_t first_packet = 0;  // 24 bits
  };
  std::array<Pair, kMaxQueuePairs> pairs{};
};
static_assert(sizeof(Parameters) == 160 && std::has_unique_object_representations_v<Parameters>);

// `mine` are this end's. Errors: kVersionMismatch (frames or messages of another version), kMismatch (another number of
// queue pairs, or another way to connect them), kCorrupt (values that cannot be).
Result<Parameters> parse_parameters(std::span<const std::byte> bytes, const Parameters& mine);

inline constexpr std::uint32_t kCmRequestMagic = 0x31634c54;  // "TLc1"

// What a request of rdma_cm carries: it is for this queue pair of the accepting end, and comes from who has shaken
// hands for it.
struct CmRequest {
  std::uint32_t magic = kCmRequestMagic;
  std::uint32_t pair = 0;  // number of the accepting end's queue pair
  handshake::Mac proof{};  // cm_proof()
};
static_assert(sizeof(CmRequest) == 40 && std::has_unique_object_representations_v<CmRequest>);

// `bytes` may be longer: rdma_cm pads them. Errors: kCorrupt.
Result<CmRequest> parse_cm_request(std::span<const std::byte> bytes);
// HMAC-SHA256 by the handshake's secret (handshake::Exchange::bind) over the number of the queue pair.
handshake::Mac cm_proof(const handshake::Mac& secret, std::uint32_t pair);

}  // namespace tensorlane::rdma
