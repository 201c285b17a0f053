#include "daemon/transport/rdma/message.h"

#include <fmt/format.h>
#include <sodium.h>

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

Result<Parameters> parse_parameters(std::span<const std::byte> bytes, const Parameters& mine) {
  Parameters p;
  if (bytes.size() != sizeof p) return corrupt(fmt::format("parameters of {} bytes", bytes.size()));
  std::memcpy(&p, bytes.data(), sizeof p);
  if (p.frame_version != protocol::kFrameVersion || p.message_version != kMessageVersion) {
    return Status(Code::kVersionMismatch,
                  fmt::format("frames of version {} in messages of version {}, this host speaks {} and {}",
                              p.frame_version, p.message_version, protocol::kFrameVersion, kMessageVersion),
                  {}, "install the same tensorlane version on every host");
  }
  if (p.queue_pairs != mine.queue_pairs) {
    return Status(Code::kMismatch,
                  fmt::format("{} queue pairs in a flow, this host has {}", p.queue_pairs, mine.queue_pairs), {},
                  "set `rdma: queue_pairs` to the same number on every host");
  }
  if (p.connect_by != mine.connect_by) {
    const auto name = [](ConnectBy by) { return by == ConnectBy::kVerbs ? "verbs" : "rdma_cm"; };
    return Status(
        Code::kMismatch,
        fmt::format("queue pairs connected by {}, this host does it by {}", name(p.connect_by), name(mine.connect_by)),
        {}, "set `rdma: connect` to the same on every host");
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

Result<CmRequest> parse_cm_request(std::span<const std::byte> bytes) {
  CmRequest request;
  if (bytes.size() < sizeof request) return corrupt(fmt::format("request of {} bytes", bytes.size()));
  std::memcpy(&request, bytes.data(), sizeof request);
  if (request.magic != kCmRequestMagic || !fits_24_bits(request.pair)) return corrupt("request that is none of ours");
  return request;
}

handshake::Mac cm_proof(const handshake::Mac& secret, std::uint32_t pair) {
  static_assert(handshake::kMacBytes == crypto_auth_hmacsha256_KEYBYTES);
  handshake::Mac proof;
  crypto_auth_hmacsha256(proof.data(), reinterpret_cast<const unsigned char*>(&pair), sizeof pair, secret.data());
  return proof;
}

}  // namespace tensorlane::rdma
