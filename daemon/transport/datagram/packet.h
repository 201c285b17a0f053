// Packets of the datagram transport: what is in one UDP payload. Little-endian; no byte is padding.
//
//   head (16 bytes), data (16), tag, bytes    a piece of the stream of the head's slot, of an association of level
//   `none` head (16 bytes), data (16), bytes, tag    the same at the other levels head (16 bytes), counts (4), state
//   (12) x m, (ack (32), ranges x 8) x n, tag
//                                             which classes are open, what has come, and how far the peer may send
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
  std::uint16_t generation = 0;  // of the stream (State); 0 in a packet of kAckSlot
  std::uint64_t number = 0;      // of its slot, in this direction of the association; never used twice
};
static_assert(sizeof(Head) == 16 && std::has_unique_object_representations_v<Head>);

struct Data {
  std::uint64_t offset = 0;  // in the slot's stream
  std::uint64_t wanted = 0;  // where the stream ends as far as its sender knows: so much is there to be sent
};
static_assert(sizeof(Data) == 16 && std::has_unique_object_representations_v<Data>);

// What follows the head of a packet of kAckSlot.
struct Counts {
  std::uint8_t states = 0, acks = 0;  // together at least one
  std::uint16_t reserved = 0;
};
static_assert(sizeof(Counts) == 4 && std::has_unique_object_representations_v<Counts>);

// How often a class has been opened and closed at one end: the count of both. It is odd while the class is open there.
// It never falls, so a record that is late says nothing new. A class can be used while both ends are at the same odd
// count.
using Phase = std::uint32_t;
constexpr bool is_open(Phase phase) {
  return phase % 2 == 1;
}
constexpr std::uint16_t generation_of(Phase phase) {
  return static_cast<std::uint16_t>((phase + 1) / 2);
}
inline constexpr Phase kMostPhase = 0xffff;  // no peer says more than this

// Of one slot.
struct State {
  Phase phase = 0;  // of the one who sends this
  Phase heard = 0;  // the highest that it has heard of the other end
  Slot slot = 0;
  std::uint8_t asks = 0;  // 1: it wants an answer
  std::uint16_t reserved = 0;
};
static_assert(sizeof(State) == 12 && std::has_unique_object_representations_v<State>);

// Of one slot. Everything counts from the association's begin, so that a later one says all that an earlier one did;
// but the credit counts from the begin of the generation's stream.
struct Ack {
  std::uint64_t largest = 0;   // packet number that has come
  std::uint64_t credit = 0;    // the peer may send bytes of the slot's stream before this
  std::uint64_t marked = 0;    // packets that came with a mark of congestion (ECN)
  std::uint32_t delay_us = 0;  // since the largest came
  Slot slot = 0;
  std::uint8_t ranges = 0;  // that follow
  std::uint16_t generation = 0;
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
  Counts counts;                     // of a packet of kAckSlot
  std::array<State, kSlots> states;  // counts.states of them, no two of one slot
  std::array<ReadAck, kSlots> acks;  // counts.acks of them, no two of one slot
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

// Writes a packet of kAckSlot into memory of the caller's.
class AckWriter {
 public:
  // `out` has room for the head and the counts at least.
  AckWriter(std::span<std::byte> out, const Head& head);
  // With up to kMaxAckRanges of the highest ranges of what has come, which are not none. False: there is no room.
  bool add(Ack ack, std::span<const Range> come);
  // Before the first add(). False: there is no room.
  bool add(const State& state);
  bool empty() const { return counts_.acks == 0 && counts_.states == 0; }
  // How long the packet is.
  std::size_t finish();
  const Head& head() const { return head_; }

 private:
  std::span<std::byte> out_;
  Head head_;
  Counts counts_;
  std::size_t used_ = sizeof(Head) + sizeof(Counts);
};

}  // namespace tensorlane::datagram
