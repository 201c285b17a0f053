// Packets of the datagram transport: what is in one UDP payload. Little-endian; no byte is padding.
//
//   head (16 bytes), data (16), bytes to the end, tag    a piece of the stream of the head's slot
//   head (16 bytes), (ack (32), ranges x 8) x n, tag     what has come, and how far the peer may send, in n slots
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

inline constexpr std::uint8_t kVersion = 1;

// Where the stream of a class, and what is known of it, is kept: control first, then the data classes, which is the
// order of service.
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
inline constexpr std::size_t kNumberSpaces = kSlots + 1;

struct Head {
  std::uint32_t association = 0;  // the number that the receiver has given it
  std::uint8_t version = kVersion;
  Slot slot = 0;
  std::uint8_t acks = 0;  // in a packet of kAckSlot
  std::uint8_t reserved = 0;
  std::uint64_t number = 0;  // of its slot, in this direction of the association; never used twice
};
static_assert(sizeof(Head) == 16 && std::has_unique_object_representations_v<Head>);

struct Data {
  std::uint64_t offset = 0;  // in the slot's stream
  std::uint64_t wanted = 0;  // where the stream ends as far as its sender knows: so much is there to be sent
};
static_assert(sizeof(Data) == 16 && std::has_unique_object_representations_v<Data>);

// Of one slot. Everything counts from the association's begin, so that a later one says all that an earlier one did.
struct Ack {
  std::uint64_t largest = 0;   // packet number that has come
  std::uint64_t credit = 0;    // the peer may send bytes of the slot's stream before this
  std::uint64_t marked = 0;    // packets that came with a mark of congestion (ECN)
  std::uint32_t delay_us = 0;  // since the largest came
  Slot slot = 0;
  std::uint8_t ranges = 0;  // that follow
  std::uint16_t reserved = 0;
};
static_assert(sizeof(Ack) == 32 && std::has_unique_object_representations_v<Ack>);

// From the largest number downwards: so many that have come, behind so many that have not. The first has no gap.
struct AckRange {
  std::uint32_t gap = 0, length = 0;
};
static_assert(sizeof(AckRange) == 8 && std::has_unique_object_representations_v<AckRange>);
inline constexpr std::size_t kMaxAckRanges = 16;

struct ReadAck {
  Ack ack;
  std::array<Range, kMaxAckRanges> ranges;  // ack.ranges of them, of packet numbers, the highest first
};

struct ReadPacket {
  Head head;
  std::array<ReadAck, kSlots> acks;  // head.acks of them, no two of one slot
  Data data;
  std::span<const std::byte> bytes;  // of the piece; may be empty
};

// The head alone, before the packet has proved to be right. Nothing where it is too short, or of another version.
std::optional<Head> read_head(std::span<const std::byte> packet);
// The first bytes of a packet of that slot which are no piece's.
constexpr std::size_t clear_bytes(const Head& head, std::size_t packet_bytes) {
  return head.slot == kAckSlot ? packet_bytes : sizeof(Head) + sizeof(Data);
}
// Everything, without the tag. False: it is no packet, and `into` is worth nothing.
[[nodiscard]] bool read_packet(std::span<const std::byte> packet, ReadPacket* into);

// Writes what stands before a piece's bytes. `out` is long enough.
void write_data(const Head& head, const Data& data, std::byte* out);

// Writes a packet of acknowledgements into memory of the caller's.
class AckWriter {
 public:
  // The head's `acks` is counted here. `out` has room for the head at least.
  AckWriter(std::span<std::byte> out, const Head& head);
  // With up to kMaxAckRanges of the highest ranges of what has come, which are not none. False: there is no room.
  bool add(Ack ack, std::span<const Range> come);
  bool empty() const { return head_.acks == 0; }
  // How long the packet is.
  std::size_t finish();
  const Head& head() const { return head_; }

 private:
  std::span<std::byte> out_;
  Head head_;
  std::size_t used_ = sizeof(Head);
};

}  // namespace tensorlane::datagram
