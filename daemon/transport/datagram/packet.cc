#include "daemon/transport/datagram/packet.h"

#include <bit>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

static_assert(std::endian::native == std::endian::little, "structs are written as they lie in memory");

// Takes one struct off the front. False: there is not so much.
template <typename Part>
bool take(std::span<const std::byte>* from, Part* part) {
  if (from->size() < sizeof(Part)) return false;
  std::memcpy(part, from->data(), sizeof(Part));
  *from = from->subspan(sizeof(Part));
  return true;
}

bool read_ack(std::span<const std::byte>* from, ReadAck* into) {
  Ack& ack = into->ack;
  if (!take(from, &ack)) return false;
  if (ack.slot >= kSlots || ack.ranges == 0 || ack.ranges > kMaxAckRanges) return false;
  if (ack.largest == ~std::uint64_t{0}) return false;
  std::uint64_t end = ack.largest + 1;
  for (std::size_t i = 0; i < ack.ranges; ++i) {
    AckRange range;
    if (!take(from, &range)) return false;
    const bool gap_fits = i == 0 ? range.gap == 0 : range.gap > 0;
    if (!gap_fits || range.length == 0 || end < std::uint64_t{range.gap} + range.length) return false;
    end -= range.gap;
    into->ranges[i] = {end - range.length, end};
    end -= range.length;
  }
  return true;
}

bool read_states(std::span<const std::byte>* rest, ReadPacket* into) {
  unsigned slots = 0;
  for (std::size_t i = 0; i < into->counts.states; ++i) {
    State& state = into->states[i];
    if (!take(rest, &state)) return false;
    if (state.slot >= kSlots || state.phase > kMostPhase || state.asks > 1 || state.reserved != 0) return false;
    const unsigned bit = 1u << state.slot;
    if ((slots & bit) != 0) return false;
    slots |= bit;
  }
  return true;
}

bool read_records(std::span<const std::byte> rest, ReadPacket* into) {
  const Counts& counts = into->counts;
  if (!take(&rest, &into->counts) || counts.reserved != 0) return false;
  if (counts.acks + counts.states == 0 || counts.acks > kSlots || counts.states > kSlots) return false;
  if (!read_states(&rest, into)) return false;
  unsigned slots = 0;
  for (std::size_t i = 0; i < counts.acks; ++i) {
    if (!read_ack(&rest, &into->acks[i])) return false;
    const unsigned bit = 1u << into->acks[i].ack.slot;
    if ((slots & bit) != 0) return false;
    slots |= bit;
  }
  return rest.empty();
}

}  // namespace

std::optional<Head> read_head(std::span<const std::byte> packet) {
  Head head;
  const bool sound = take(&packet, &head) && head.version == kVersion && head.slot < kNumberSpaces;
  return sound ? std::optional(head) : std::nullopt;
}

bool read_packet(std::span<const std::byte> packet, std::size_t tag_before, ReadPacket* into) {
  const std::optional<Head> head = read_head(packet);
  if (!head) return false;
  into->head = *head;
  packet = packet.subspan(sizeof(Head));
  if (head->slot == kAckSlot) return head->generation == 0 && read_records(packet, into);
  if (!take(&packet, &into->data) || packet.size() < tag_before) return false;
  packet = packet.subspan(tag_before);
  into->bytes = packet;
  return into->data.wanted >= into->data.offset && packet.size() <= into->data.wanted - into->data.offset;
}

void write_data(const Head& head, const Data& data, std::byte* out) {
  std::memcpy(out, &head, sizeof head);
  std::memcpy(out + sizeof head, &data, sizeof data);
}

AckWriter::AckWriter(std::span<std::byte> out, const Head& head) : out_(out), head_(head) {
  TL_ASSERT(out.size() >= used_);
}

bool AckWriter::add(const State& state) {
  TL_ASSERT(counts_.acks == 0);
  if (out_.size() - used_ < sizeof state) return false;
  std::memcpy(out_.data() + used_, &state, sizeof state);
  used_ += sizeof state;
  ++counts_.states;
  return true;
}

bool AckWriter::add(Ack ack, std::span<const Range> come) {
  TL_ASSERT(!come.empty());
  if (out_.size() - used_ < sizeof(Ack) + sizeof(AckRange)) return false;
  const std::size_t fits = (out_.size() - used_ - sizeof(Ack)) / sizeof(AckRange);
  const std::size_t most = std::min({fits, kMaxAckRanges, come.size()});
  std::byte* const at = out_.data() + used_;
  used_ += sizeof(Ack);
  constexpr std::uint64_t kMost = ~std::uint32_t{0};
  std::uint64_t begin = come.back().end;  // of the range above
  ack.largest = begin - 1;
  ack.ranges = 0;
  while (ack.ranges < most) {
    const Range& range = come[come.size() - 1 - ack.ranges];
    if (begin - range.end > kMost) break;
    const AckRange part{static_cast<std::uint32_t>(begin - range.end),
                        static_cast<std::uint32_t>(std::min(range.length(), kMost))};
    std::memcpy(out_.data() + used_, &part, sizeof part);
    used_ += sizeof part;
    ++ack.ranges;
    if (range.length() > kMost) break;  // its upper end: of what is older nobody asks
    begin = range.begin;
  }
  std::memcpy(at, &ack, sizeof ack);
  ++counts_.acks;
  return true;
}

std::size_t AckWriter::finish() {
  std::memcpy(out_.data(), &head_, sizeof head_);
  std::memcpy(out_.data() + sizeof head_, &counts_, sizeof counts_);
  return used_;
}

}  // namespace tensorlane::datagram
