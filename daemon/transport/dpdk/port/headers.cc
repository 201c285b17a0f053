#include "daemon/transport/dpdk/port/headers.h"

namespace tensorlane::dpdk {
namespace {

constexpr std::uint8_t kHops = 64;
constexpr std::uint16_t kDontFragment = 0x4000;

void write_ipv4(std::byte* at, const DatagramHeaders& headers, std::size_t bytes, bool offload) {
  store8(at, 0x45);
  store8(at + 1, headers.traffic_class);
  store16(at + 2, static_cast<std::uint16_t>(kIpv4Bytes + bytes));
  store16(at + 4, 0);
  store16(at + 6, kDontFragment);
  store8(at + 8, kHops);
  store8(at + 9, kProtocolUdp);
  store16(at + 10, 0);
  store_ip(at + 12, headers.source);
  store_ip(at + 16, headers.destination);
  if (!offload) store_checksum(at + 10, add_to_sum(0, {at, kIpv4Bytes}));
}

// `first` bytes lie here, UDP's header with them, and the rest of `bytes` behind.
void write_udp(std::byte* at, const DatagramHeaders& headers, std::size_t first, Parts behind, std::size_t bytes,
               bool offload) {
  store16(at, headers.source_port);
  store16(at + 2, headers.destination_port);
  store16(at + 4, static_cast<std::uint16_t>(bytes));
  store16(at + 6, 0);
  const std::uint64_t pseudo =
      pseudo_header_sum(headers.source, headers.destination, kProtocolUdp, static_cast<std::uint32_t>(bytes));
  if (offload) {
    const std::uint16_t sum = fold_sum(pseudo);
    std::memcpy(at + 6, &sum, sizeof sum);
    return;
  }
  std::uint64_t sum = add_to_sum(pseudo, {at, first});
  std::size_t before = first;
  for (const std::span<const std::byte> part : behind) {
    sum = add_at(sum, part, before);
    before += part.size();
  }
  store_checksum(at + 6, sum);
  // Zero says that there is no checksum; all ones mean the same number.
  if (load16(at + 6) == 0) store16(at + 6, 0xffff);
}

}  // namespace

std::size_t write_ethernet(std::byte* at, const MacAddress& to, const MacAddress& from,
                           std::optional<std::uint16_t> tci, std::uint16_t ether_type) {
  store_mac(at, to);
  store_mac(at + 6, from);
  std::size_t bytes = 12;
  if (tci) {
    store16(at + bytes, kEtherTypeVlan);
    store16(at + bytes + 2, *tci);
    bytes += kVlanTagBytes;
  }
  store16(at + bytes, ether_type);
  return bytes + 2;
}

void write_ipv6(std::byte* at, const IpAddress& source, const IpAddress& destination, std::uint8_t traffic_class,
                std::uint32_t flow_label, std::uint8_t protocol, std::uint8_t hop_limit, std::size_t bytes) {
  store32(at, 6U << 28 | static_cast<std::uint32_t>(traffic_class) << 20 | (flow_label & 0xfffff));
  store16(at + 4, static_cast<std::uint16_t>(bytes));
  store8(at + 6, protocol);
  store8(at + 7, hop_limit);
  store_ip(at + 8, source);
  store_ip(at + 24, destination);
}

std::size_t write_headers(const DatagramHeaders& headers, std::byte* payload, std::size_t bytes,
                          ChecksumOffload offload, Parts behind) {
  const bool v6 = headers.destination.v6;
  const std::size_t total = datagram_header_bytes(v6, headers.tci.has_value());
  std::byte* const frame = payload - total;
  std::byte* const ip =
      frame + write_ethernet(frame, headers.to, headers.from, headers.tci, v6 ? kEtherTypeIpv6 : kEtherTypeIpv4);
  const std::size_t datagram = kUdpBytes + bytes + bytes_of(behind);
  if (v6) {
    const std::uint32_t label = headers.source_port * 0x9e3779b1U >> 12 | 1;
    write_ipv6(ip, headers.source, headers.destination, headers.traffic_class, label, kProtocolUdp, kHops, datagram);
  } else {
    write_ipv4(ip, headers, datagram, offload.ip);
  }
  write_udp(payload - kUdpBytes, headers, kUdpBytes + bytes, behind, datagram, offload.udp);
  return total;
}

}  // namespace tensorlane::dpdk
