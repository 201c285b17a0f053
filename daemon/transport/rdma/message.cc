#include "daemon/transport/rdma/message.h"

#include <fmt/format.h>

#include <cstring>

namespace tensorlane::rdma {
namespace {

Status corrupt(std::string what) {
  return {Code::kCorrupt, std::move(what), {}, "install the same tensorlane version on every host"};
}

constexpr bool fits_24_bits(std::uint32_t value) {
  return value < 1u << 24;
}

}  // namespace

Place Message::place(std::size_t i) const {
  Place place;
  std::memcpy(&place, places.data() + i * sizeof place, sizeof place);
  return place;
}

Result<Message> parse_message(std::span<const std::byte> bytes) {
  Message message;
  if (bytes.size() < sizeof message.head) return corrupt(fmt::format("message of {} bytes", bytes.size()));
  std::memcpy(&message.head, bytes.data(), sizeof message.head);
  const MessageHead& head = message.head;
  bytes = bytes.subspan(sizeof head);
  if (head.credits > kCredits)
    return corrupt(fmt::format("message with {} credits, at most {}", head.credits, kCredits));
  if (head.reserved != 0) return corrupt("message with reserved bits");
  const bool bare = head.places == 0 && head.landed_at == 0;
  switch (head.kind) {
    case MessageKind::kFrame:
      if (head.places > kMaxPlaces || bytes.size() < protocol::kFrameHeaderBytes + head.places * sizeof(Place)) {
        return corrupt(fmt::format("frame message of {} bytes with {} places", bytes.size(), head.places));
      }
      message.frame_header = bytes.first(protocol::kFrameHeaderBytes);
      message.places = bytes.subspan(protocol::kFrameHeaderBytes, head.places * sizeof(Place));
      message.payload = bytes.subspan(protocol::kFrameHeaderBytes + message.places.size());
      if (head.landed_at != 0 && !message.payload.empty()) return corrupt("frame message with its payload twice");
      return message;
    case MessageKind::kMore:
      if (!bare || bytes.empty()) return corrupt("payload message without a payload");
      message.payload = bytes;
      return message;
    case MessageKind::kCredit:
      if (!bare || !bytes.empty()) return corrupt(fmt::format("credit message with {} bytes", bytes.size()));
      return message;
  }
  return corrupt(fmt::format("message of unknown kind {}", static_cast<int>(head.kind)));
}

Result<Parameters> parse_parameters(std::span<const std::byte> bytes, std::uint8_t queue_pairs) {
  Parameters p;
  if (bytes.size() != sizeof p) return corrupt(fmt::format("parameters of {} bytes", bytes.size()));
  std::memcpy(&p, bytes.data(), sizeof p);
  if (p.frame_version != protocol::kFrameVersion || p.message_version != kMessageVersion) {
    return Status(Code::kVersionMismatch,
                  fmt::format("frames of version {} in messages of version {}, this host speaks {} and {}",
                              p.frame_version, p.message_version, protocol::kFrameVersion, kMessageVersion),
                  {}, "install the same tensorlane version on every host");
  }
  if (p.queue_pairs != queue_pairs) {
    return Status(Code::kMismatch,
                  fmt::format("{} queue pairs in a flow, this host has {}", p.queue_pairs, queue_pairs), {},
                  "set `rdma: queue_pairs` to the same number on every host");
  }
  if (p.message_bytes != kMessageBytes || p.credits != kCredits)
    return corrupt(fmt::format("messages of {} bytes with {} credits", p.message_bytes, p.credits));
  if (p.path_mtu < 1 || p.path_mtu > 5) return corrupt(fmt::format("path MTU number {}", p.path_mtu));
  for (std::size_t i = 0; i < p.queue_pairs; ++i) {
    if (!fits_24_bits(p.pairs[i].number) || !fits_24_bits(p.pairs[i].first_packet))
      return corrupt(fmt::format("queue pair number {:#x}", p.pairs[i].number));
  }
  return p;
}

}  // namespace tensorlane::rdma
