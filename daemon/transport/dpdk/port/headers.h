// The headers of what a port sends: Ethernet, a VLAN tag, IPv4 or IPv6, and UDP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "daemon/transport/dpdk/port/packet_port.h"
#include "daemon/transport/dpdk/port/wire.h"

namespace tensorlane::dpdk {

// With IPv6 and a VLAN tag.
inline constexpr std::size_t kMaxHeaderBytes = kEthernetBytes + kVlanTagBytes + kIpv6Bytes + kUdpBytes;

// The NIC fills in these checksums; else they are computed here.
struct ChecksumOffload {
  bool ip = false, udp = false;
};

struct DatagramHeaders {
  MacAddress to{}, from{};
  std::optional<std::uint16_t> tci;  // of the VLAN tag: PCP << 13 | VLAN
  IpAddress source, destination;     // of one family
  std::uint8_t traffic_class = 0;    // DSCP << 2 | ECN
  std::uint16_t source_port = 0, destination_port = 0;
};
constexpr std::uint16_t make_tci(std::uint8_t pcp, std::uint16_t vlan) {
  return static_cast<std::uint16_t>(pcp << 13 | vlan);
}
// All of a port's packets say that their sender understands marks of congestion: ECT(0).
constexpr std::uint8_t make_traffic_class(std::uint8_t dscp) {
  return static_cast<std::uint8_t>(dscp << 2 | 2);
}

constexpr std::size_t datagram_header_bytes(bool v6, bool tagged) {
  return kEthernetBytes + (tagged ? kVlanTagBytes : 0) + (v6 ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes;
}
// Writes the headers into the datagram_header_bytes() in front of `payload`, which has `bytes` bytes and goes on in the
// parts behind, and answers how many that were. Where the NIC fills in UDP's checksum, the sum of the pseudo header
// stands in its place, as NICs want it; the place of IP's is zero. An IPv4 packet must not be fragmented (DF), and its
// identification is 0 (RFC 6864). IPv6's flow label is a function of the source port (RFC 6438).
std::size_t write_headers(const DatagramHeaders& headers, std::byte* payload, std::size_t bytes,
                          ChecksumOffload offload, Parts behind = {});

// Writes Ethernet's header and the VLAN tag, and answers how many bytes that were.
std::size_t write_ethernet(std::byte* at, const MacAddress& to, const MacAddress& from,
                           std::optional<std::uint16_t> tci, std::uint16_t ether_type);
// Writes IPv6's header.
void write_ipv6(std::byte* at, const IpAddress& source, const IpAddress& destination, std::uint8_t traffic_class,
                std::uint32_t flow_label, std::uint8_t protocol, std::uint8_t hop_limit, std::size_t bytes);

}  // namespace tensorlane::dpdk
