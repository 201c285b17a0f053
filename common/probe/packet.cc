#include "common/probe/packet.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace tensorlane::probe {
namespace {

constexpr std::size_t kIpv4Header = 20, kIpv6Header = 40, kIcmpHeader = 8, kPorts = 4;
constexpr std::uint8_t kIcmpTimeExceeded = 11, kIcmp6TimeExceeded = 3;

std::uint16_t read_16(std::span<const std::uint8_t> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

std::string address_text(std::span<const std::uint8_t> bytes, std::size_t at, int family) {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(family, &bytes[at], text, sizeof text);
  return text;
}

std::optional<PacketFacts> read_ipv4(std::span<const std::uint8_t> packet) {
  if (packet.size() < kIpv4Header) return std::nullopt;
  const std::size_t header = std::size_t{4} * (packet[0] & 0xf);
  if (header < kIpv4Header || packet.size() < header + kPorts || packet[9] != IPPROTO_TCP) return std::nullopt;
  if ((read_16(packet, 6) & 0x1fff) != 0) return std::nullopt;  // a later fragment has no ports
  return PacketFacts{.ipv6 = false,
                     .dscp = static_cast<std::uint8_t>(packet[1] >> 2),
                     .hop_limit = packet[8],
                     .source = address_text(packet, 12, AF_INET),
                     .destination = address_text(packet, 16, AF_INET),
                     .source_port = read_16(packet, header),
                     .destination_port = read_16(packet, header + 2)};
}

std::optional<PacketFacts> read_ipv6(std::span<const std::uint8_t> packet) {
  if (packet.size() < kIpv6Header + kPorts || packet[6] != IPPROTO_TCP) return std::nullopt;
  return PacketFacts{.ipv6 = true,
                     .dscp = static_cast<std::uint8_t>((read_16(packet, 0) >> 4 & 0xff) >> 2),
                     .hop_limit = packet[7],
                     .source = address_text(packet, 8, AF_INET6),
                     .destination = address_text(packet, 24, AF_INET6),
                     .source_port = read_16(packet, kIpv6Header),
                     .destination_port = read_16(packet, kIpv6Header + 2)};
}

}  // namespace

std::optional<PacketFacts> read_packet(std::span<const std::uint8_t> packet) {
  if (packet.empty()) return std::nullopt;
  if (packet[0] >> 4 == 4) return read_ipv4(packet);
  if (packet[0] >> 4 == 6) return read_ipv6(packet);
  return std::nullopt;
}

std::optional<PacketFacts> read_time_exceeded(std::span<const std::uint8_t> message, bool ipv6) {
  if (!ipv6) {
    if (message.size() < kIpv4Header) return std::nullopt;
    const std::size_t header = std::size_t{4} * (message[0] & 0xf);
    if (header < kIpv4Header || message.size() < header) return std::nullopt;
    message = message.subspan(header);
  }
  if (message.size() < kIcmpHeader || message[0] != (ipv6 ? kIcmp6TimeExceeded : kIcmpTimeExceeded))
    return std::nullopt;
  std::optional<PacketFacts> quoted = read_packet(message.subspan(kIcmpHeader));
  if (quoted && quoted->ipv6 != ipv6) return std::nullopt;
  return quoted;
}

}  // namespace tensorlane::probe
