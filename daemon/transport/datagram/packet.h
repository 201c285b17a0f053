// Packets of the datagram transport: what is in one UDP payload. Little-endian; no byte is padding.
//
// - a piece of the stream, at level `none`: head (16 bytes), data (16), tag (8), bytes
// - the same at the other levels: head (16), data (16), bytes, tag (16)
// - what has come, and how far the peer may send: head (16), ack (32), range (8) x n, tag (8 or 16)
//
// The tag proves the packet (seal.h). A packet in which anything else stands is dropped, and nothing of it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "common/base/units.h"
#include "daemon/transport/datagram/ranges.h"

namespace tensorlane::datagram {

inline constexpr std::uint8_t kVersion = 2;

// A class by its place in the order of service: control first, then the data classes.
using Slot = std::uint8_t;
inline constexpr std::size_t kSlots = kMaxDataClasses + 1;
constexpr Slot slot_of(ClassId cls) {
  return cls == kControlClass ? Slot{0} : static_cast<Slot>(cls.value + 1);
}
constexpr ClassId class_of(Slot slot) {
  return slot == 0 ? kControlClass : ClassId(static_cast<std::uint8_t>(slot - 1));
}
// Of packets with acknowledgements, which travel in the control class and are not acknowledged themselves.
inline constexpr Slot kAckSlot = kSlots;

struct Head {
  std::uint32_t association = 0;  // the number that the receiver has given it
  std::uint8_t version = kVersion;
  Slot slot = 0;  // the association's, or kAckSlot
  std::uint16_t reserved = 0;
  // Data and acknowledgements are counted apart, in each direction of the association. Never used twice.
  std::uint64_t number = 0;
};
static_assert(sizeof(Head) == 16 && std::has_unique_object_representations_v<Head>);

struct Data {
  std::uint64_t offset = 0;  // in the stream
  std::uint64_t wanted = 0;  // where the stream ends as far as its sender knows: so much is there to be sent
};
static_assert(sizeof(Data) == 16 && std::has_unique_object_representations_v<Data>);

// Everything counts from the association's begin, so that a later one says all that an earlier one did.
struct Ack {
  std::uint64_t largest = 0;   // packet number that has come
  std::uint64_t credit = 0;    // the peer may send bytes of the stream before this
  std::uint64_t marked = 0;    // packets that came with a mark of congestion (ECN)
  std::uint32_t delay_us = 0;  // since the largest came
  std::uint32_t ranges = 0;    // that follow; at least one
};
static_assert(sizeof(Ack) == 32 && std::has_unique_object_representations_v<Ack>);

// From the largest number downwards: so many that have come, behind so many that have not. The first has no gap.
struct AckRange {
  std::uint32_t gap = 0, length = 0;
};
static_assert(sizeof(AckRange) == 8 && std::has_unique_object_representations_v<AckRange>);
inline constexpr std::size_t kMaxAckRanges = 16;

struct ReadPacket {
  Head head;
  // Of a packet of kAckSlot.
  Ack ack;
  std::array<Range, kMaxAckRanges> ranges;  // ack.ranges of them, of packet numbers, the highest first
  // Of every other one.
  Data data;
  std::span<const std::byte> bytes;  // of the piece; may be empty
};

// The head alone, before the packet has proved to be right. Nothing where it is too short, or of another version.
std::optional<Head> read_head(std::span<const std::byte> packet);
// The first bytes of a packet of that slot which are no piece's.
constexpr std::size_t clear_bytes(const Head& head, std::size_t packet_bytes) {
  return head.slot == kAckSlot ? packet_bytes : sizeof(Head) + sizeof(Data);
}
// Everything, without a tag at the end. In a packet with a piece `tag_before` bytes stand before the piece's. False: it
// is no packet, and `into` is worth nothing.
[[nodiscard]] bool read_packet(std::span<const std::byte> packet, std::size_t tag_before, ReadPacket* into);

// Writes what stands before a piece's bytes. `out` is long enough.
void write_data(const Head& head, const Data& data, std::byte* out);
// Writes a packet of acknowledgements, with as many of the highest ranges of what has come as there is room for, but no
// more than kMaxAckRanges; `come` is not empty, and `out` has room for one range. Returns how long the packet is.
std::size_t write_ack(const Head& head, Ack ack, std::span<const Range> come, std::span<std::byte> out);

}  // namespace tensorlane::datagram
