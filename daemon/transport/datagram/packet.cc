#include "daemon/transport/datagram/packet.h"

#include <algorithm>
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

bool read_ack(std::span<const std::byte> rest, ReadPacket* into) {
  const Ack& ack = into->ack;
  if (!take(&rest, &into->ack)) return false;
  if (ack.ranges == 0 || ack.ranges > kMaxAckRanges || ack.largest == ~std::uint64_t{0}) return false;
  std::uint64_t end = ack.largest + 1;
  for (std::size_t i = 0; i < ack.ranges; ++i) {
    AckRange range;
    if (!take(&rest, &range)) return false;
    const bool gap_fits = i == 0 ? range.gap == 0 : range.gap > 0;
    if (!gap_fits || range.length == 0 || end < std::uint64_t{range.gap} + range.length) return false;
    end -= range.gap;
    into->ranges[i] = {end - range.length, end};
    end -= range.length;
  }
  return rest.empty();
}

}  // namespace

std::optional<Head> read_head(std::span<const std::byte> packet) {
  Head head;
  const bool sound = take(&packet, &head) && head.version == kVersion && head.slot <= kAckSlot && head.reserved == 0;
  return sound ? std::optional(head) : std::nullopt;
}

bool read_packet(std::span<const std::byte> packet, std::size_t tag_before, ReadPacket* into) {
  const std::optional<Head> head = read_head(packet);
  if (!head) return false;
  into->head = *head;
  packet = packet.subspan(sizeof(Head));
  if (head->slot == kAckSlot) return read_ack(packet, into);
  if (!take(&packet, &into->data) || packet.size() < tag_before) return false;
  packet = packet.subspan(tag_before);
  into->bytes = packet;
  return into->data.wanted >= into->data.offset && packet.size() <= into->data.wanted - into->data.offset;
}

void write_data(const Head& head, const Data& data, std::byte* out) {
  std::memcpy(out, &head, sizeof head);
  std::memcpy(out + sizeof head, &data, sizeof data);
}

std::size_t write_ack(const Head& head, Ack ack, std::span<const Range> come, std::span<std::byte> out) {
  constexpr std::size_t kBefore = sizeof(Head) + sizeof(Ack);
  TL_ASSERT(!come.empty() && out.size() >= kBefore + sizeof(AckRange));
  const std::size_t most = std::min({(out.size() - kBefore) / sizeof(AckRange), kMaxAckRanges, come.size()});
  constexpr std::uint64_t kMost = ~std::uint32_t{0};
  std::byte* at = out.data() + kBefore;
  std::uint64_t begin = come.back().end;  // of the range above
  ack.largest = begin - 1;
  ack.ranges = 0;
  while (ack.ranges < most) {
    const Range& range = come[come.size() - 1 - ack.ranges];
    if (begin - range.end > kMost) break;
    const AckRange part{static_cast<std::uint32_t>(begin - range.end),
                        static_cast<std::uint32_t>(std::min(range.length(), kMost))};
    std::memcpy(at, &part, sizeof part);
    at += sizeof part;
    ++ack.ranges;
    if (range.length() > kMost) break;  // its upper end: of what is older nobody asks
    begin = range.begin;
  }
  std::memcpy(out.data(), &head, sizeof head);
  std::memcpy(out.data() + sizeof head, &ack, sizeof ack);
  return kBefore + ack.ranges * sizeof(AckRange);
}

}  // namespace tensorlane::datagram
