#include "daemon/transport/dpdk/port/discovery.h"

#include <algorithm>

#include "common/base/assert.h"
#include "daemon/transport/dpdk/port/headers.h"

namespace tensorlane::dpdk {
namespace {

constexpr std::size_t kArpBytes = 28, kSolicitationBytes = 24, kLinkOptionBytes = 8, kMinFrame = 60;
constexpr std::uint16_t kArpRequest = 1, kArpReply = 2;
constexpr std::uint8_t kSolicitation = 135, kAdvertisement = 136, kSourceLink = 1, kTargetLink = 2;
constexpr std::uint8_t kDiscoveryHops = 255;  // no router has passed it on
constexpr std::uint32_t kSolicited = 0x40000000, kOverride = 0x20000000;

struct Arp {
  std::uint16_t operation;
  MacAddress sender_mac;
  IpAddress sender;
  MacAddress target_mac;
  IpAddress target;
};

// Frames have at least 60 bytes, without the FCS.
std::size_t padded(std::span<std::byte> out, std::size_t bytes) {
  if (bytes >= kMinFrame) return bytes;
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(bytes), out.begin() + kMinFrame, std::byte{0});
  return kMinFrame;
}

std::size_t write_arp(const DiscoverySource& from, const MacAddress& to, const Arp& arp, std::span<std::byte> out) {
  std::byte* const at = out.data() + write_ethernet(out.data(), to, from.mac, from.tci, kEtherTypeArp);
  store16(at, 1);
  store16(at + 2, kEtherTypeIpv4);
  store8(at + 4, 6);
  store8(at + 5, 4);
  store16(at + 6, arp.operation);
  store_mac(at + 8, arp.sender_mac);
  store_ip(at + 14, arp.sender);
  store_mac(at + 18, arp.target_mac);
  store_ip(at + 24, arp.target);
  return padded(out, static_cast<std::size_t>(at - out.data()) + kArpBytes);
}

struct Discovery {
  IpAddress source, destination, subject;
  std::uint8_t type;
  std::uint32_t flags;
};

std::size_t write_discovery(const DiscoverySource& from, const MacAddress& to, const Discovery& message,
                            std::span<std::byte> out) {
  constexpr std::size_t kBytes = kSolicitationBytes + kLinkOptionBytes;
  std::byte* const ip = out.data() + write_ethernet(out.data(), to, from.mac, from.tci, kEtherTypeIpv6);
  write_ipv6(ip, message.source, message.destination, from.traffic_class, 0, kProtocolIcmpv6, kDiscoveryHops, kBytes);
  std::byte* const at = ip + kIpv6Bytes;
  store8(at, message.type);
  store8(at + 1, 0);
  store16(at + 2, 0);
  store32(at + 4, message.flags);
  store_ip(at + 8, message.subject);
  store8(at + 24, message.type == kSolicitation ? kSourceLink : kTargetLink);
  store8(at + 25, 1);
  store_mac(at + 26, from.mac);
  const std::uint64_t pseudo = pseudo_header_sum(message.source, message.destination, kProtocolIcmpv6, kBytes);
  store_checksum(at + 2, add_to_sum(pseudo, {at, kBytes}));
  return padded(out, static_cast<std::size_t>(at - out.data()) + kBytes);
}

// The MAC address of an option. False: the options break their rules. Without such an option `mac` stays as it is.
bool read_link_option(std::span<const std::byte> options, std::uint8_t type, MacAddress* mac) {
  while (!options.empty()) {
    if (options.size() < 2) return false;
    const std::size_t bytes = std::size_t{load8(options.data() + 1)} * 8;
    if (bytes == 0 || bytes > options.size()) return false;
    if (load8(options.data()) == type) *mac = load_mac(options.data() + 2);
    options = options.subspan(bytes);
  }
  return true;
}

}  // namespace

IpAddress solicited_node(const IpAddress& address) {
  IpAddress node;
  node.v6 = true;
  node.bytes = {0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff};
  std::copy(address.bytes.begin() + 13, address.bytes.end(), node.bytes.begin() + 13);
  return node;
}

MacAddress multicast_mac(const IpAddress& address) {
  return {0x33, 0x33, address.bytes[12], address.bytes[13], address.bytes[14], address.bytes[15]};
}

std::size_t write_question(const DiscoverySource& from, const IpAddress& own, const IpAddress& subject,
                           std::optional<MacAddress> at, std::span<std::byte> out) {
  TL_ASSERT(out.size() >= kMaxDiscoveryBytes && own.v6 == subject.v6);
  if (!subject.v6) return write_arp(from, at.value_or(kBroadcastMac), {kArpRequest, from.mac, own, {}, subject}, out);
  const IpAddress to = at ? subject : solicited_node(subject);
  return write_discovery(from, at.value_or(multicast_mac(to)), {own, to, subject, kSolicitation, 0}, out);
}

std::size_t write_answer(const DiscoverySource& from, const NeighbourMessage& question, std::span<std::byte> out) {
  TL_ASSERT(out.size() >= kMaxDiscoveryBytes);
  const IpAddress& own = question.subject;
  if (!own.v6) return write_arp(from, question.mac, {kArpReply, from.mac, own, question.mac, question.sender}, out);
  if (is_unicast(question.sender))
    return write_discovery(from, question.mac, {own, question.sender, own, kAdvertisement, kSolicited | kOverride},
                           out);
  // Somebody wants the address for itself, and has none to be answered at: all hosts are told that it is taken.
  IpAddress all;
  all.v6 = true;
  all.bytes[0] = 0xff;
  all.bytes[1] = 2;
  all.bytes[15] = 1;
  return write_discovery(from, multicast_mac(all), {own, all, own, kAdvertisement, kOverride}, out);
}

std::optional<NeighbourMessage> parse_arp(std::span<const std::byte> packet, const MacAddress& frame_from, Drop* why) {
  *why = Drop::kShort;
  if (packet.size() < kArpBytes) return std::nullopt;
  const std::byte* const at = packet.data();
  *why = Drop::kBadNeighbour;
  if (load16(at) != 1 || load16(at + 2) != kEtherTypeIpv4 || load8(at + 4) != 6 || load8(at + 5) != 4)
    return std::nullopt;
  const std::uint16_t operation = load16(at + 6);
  NeighbourMessage message;
  message.mac = load_mac(at + 8);
  message.sender = load_ip(at + 14, false);
  // Whoever sends for another one may be lying; hosts do not.
  if (message.mac != frame_from || !is_unicast(message.mac)) return std::nullopt;
  if (operation == kArpRequest) {
    message.subject = load_ip(at + 24, false);
    if (!is_unicast(message.sender) && message.sender != IpAddress{}) return std::nullopt;
    return message;
  }
  if (operation != kArpReply || !is_unicast(message.sender)) return std::nullopt;
  message.kind = NeighbourMessage::Kind::kAnswer;
  message.subject = message.sender;
  return message;
}

std::optional<NeighbourMessage> parse_icmpv6(std::span<const std::byte> ip_header, std::span<const std::byte> packet,
                                             const MacAddress& frame_from, Drop* why) {
  *why = Drop::kForeignProtocol;
  if (packet.empty()) return std::nullopt;
  const std::uint8_t type = load8(packet.data());
  if (type != kSolicitation && type != kAdvertisement) return std::nullopt;
  *why = Drop::kBadNeighbour;
  if (packet.size() < kSolicitationBytes || load8(packet.data() + 1) != 0) return std::nullopt;
  if (load8(ip_header.data() + 7) != kDiscoveryHops) return std::nullopt;
  const IpAddress source = load_ip(ip_header.data() + 8, true), destination = load_ip(ip_header.data() + 24, true);
  const std::uint64_t pseudo =
      pseudo_header_sum(source, destination, kProtocolIcmpv6, static_cast<std::uint32_t>(packet.size()));
  if (fold_sum(add_to_sum(pseudo, packet)) != 0xffff) return std::nullopt;
  NeighbourMessage message;
  message.sender = source;
  message.subject = load_ip(packet.data() + 8, true);
  const std::span<const std::byte> options = packet.subspan(kSolicitationBytes);
  if (type == kSolicitation) {
    message.mac = frame_from;
    const bool fits = is_unicast(source) ||
                      (source == IpAddress{.bytes = {}, .v6 = true} && destination == solicited_node(message.subject));
    if (!fits || !read_link_option(options, kSourceLink, &message.mac) || message.mac != frame_from)
      return std::nullopt;
    return message;
  }
  message.kind = NeighbourMessage::Kind::kAnswer;
  const bool solicited = (load8(packet.data() + 4) & 0x40) != 0;
  if (!read_link_option(options, kTargetLink, &message.mac) || !is_unicast(message.mac) || !is_unicast(source))
    return std::nullopt;
  if (!solicited) *why = Drop::kUnasked;
  return solicited ? std::optional(message) : std::nullopt;
}

}  // namespace tensorlane::dpdk
