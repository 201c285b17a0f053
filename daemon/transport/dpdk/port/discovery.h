// Packets of ARP (RFC 826) and of neighbour discovery (RFC 4861): who has an address, and who says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "daemon/transport/dpdk/port/frame.h"

namespace tensorlane::dpdk {

// The longest that is written here: a solicitation or advertisement with one option, and a VLAN tag.
inline constexpr std::size_t kMaxDiscoveryBytes = 96;

// Where the packets of this port come from.
struct DiscoverySource {
  MacAddress mac{};
  std::optional<std::uint16_t> tci;
  std::uint8_t traffic_class = 0;
};

// Writes a frame that asks for the MAC address of `subject`, of the family of `own`, and answers its length. With `at`
// only that MAC address is asked; else all hosts are, or with IPv6 those that may have the address.
std::size_t write_question(const DiscoverySource& from, const IpAddress& own, const IpAddress& subject,
                           std::optional<MacAddress> at, std::span<std::byte> out);
// Writes a frame that answers `question`.
std::size_t write_answer(const DiscoverySource& from, const NeighbourMessage& question, std::span<std::byte> out);

// Multicast addresses by which a host with that IPv6 address is asked.
IpAddress solicited_node(const IpAddress& address);
MacAddress multicast_mac(const IpAddress& address);

// What stands behind Ethernet's header in a frame of ARP, or behind IPv6's in one of ICMPv6. `frame_from` is the
// frame's source. Nothing: `why` says so.
std::optional<NeighbourMessage> parse_arp(std::span<const std::byte> packet, const MacAddress& frame_from, Drop* why);
std::optional<NeighbourMessage> parse_icmpv6(std::span<const std::byte> ip_header, std::span<const std::byte> packet,
                                             const MacAddress& frame_from, Drop* why);

}  // namespace tensorlane::dpdk
