// Numbers in packets, which are big-endian, and the Internet checksum (RFC 1071).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "daemon/transport/dpdk/port/address.h"

namespace tensorlane::dpdk {

inline constexpr std::size_t kEthernetBytes = 14, kVlanTagBytes = 4, kIpv4Bytes = 20, kIpv6Bytes = 40, kUdpBytes = 8;
inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800, kEtherTypeArp = 0x0806, kEtherTypeVlan = 0x8100,
                               kEtherTypeIpv6 = 0x86dd;
inline constexpr std::uint8_t kProtocolUdp = 17, kProtocolIcmpv6 = 58, kProtocolFragment = 44;

inline std::uint8_t load8(const std::byte* from) {
  return std::to_integer<std::uint8_t>(*from);
}
inline std::uint16_t load16(const std::byte* from) {
  return static_cast<std::uint16_t>(load8(from) << 8 | load8(from + 1));
}
inline void store8(std::byte* to, std::uint8_t value) {
  *to = std::byte{value};
}
inline void store16(std::byte* to, std::uint16_t value) {
  store8(to, static_cast<std::uint8_t>(value >> 8));
  store8(to + 1, static_cast<std::uint8_t>(value));
}
inline void store32(std::byte* to, std::uint32_t value) {
  store16(to, static_cast<std::uint16_t>(value >> 16));
  store16(to + 2, static_cast<std::uint16_t>(value));
}
inline MacAddress load_mac(const std::byte* from) {
  MacAddress mac;
  std::memcpy(mac.data(), from, mac.size());
  return mac;
}
inline void store_mac(std::byte* to, const MacAddress& mac) {
  std::memcpy(to, mac.data(), mac.size());
}
inline IpAddress load_ip(const std::byte* from, bool v6) {
  IpAddress address;
  address.v6 = v6;
  std::memcpy(address.bytes.data(), from, address.size());
  return address;
}
inline void store_ip(std::byte* to, const IpAddress& address) {
  std::memcpy(to, address.bytes.data(), address.size());
}

// Adds 16-bit words, as they lie in memory, to a sum that does not overflow within the length of any packet. An odd
// last byte counts with a zero behind it, so only the last part of what is summed may have an odd length.
std::uint64_t add_to_sum(std::uint64_t sum, std::span<const std::byte> bytes);
// The same of bytes behind so many others.
std::uint64_t add_at(std::uint64_t sum, std::span<const std::byte> bytes, std::size_t before);
// What stands before the transport header, as far as the checksum of UDP and ICMPv6 is concerned.
std::uint64_t pseudo_header_sum(const IpAddress& source, const IpAddress& destination, std::uint8_t protocol,
                                std::uint32_t bytes);
// The sum as 16 bits, in the order of memory; all ones for bytes that hold their own right checksum.
std::uint16_t fold_sum(std::uint64_t sum);
// Writes the checksum that belongs to the sum. Its place counted as zeros in the sum.
inline void store_checksum(std::byte* to, std::uint64_t sum) {
  const auto checksum = static_cast<std::uint16_t>(~fold_sum(sum));
  std::memcpy(to, &checksum, sizeof checksum);
}

}  // namespace tensorlane::dpdk
