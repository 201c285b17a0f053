// Addresses of hosts and of their NICs as packets carry them.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace tensorlane::dpdk {

using MacAddress = std::array<std::uint8_t, 6>;
inline constexpr MacAddress kBroadcastMac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

// An IPv4 address has its four bytes in front, and zeros behind them. In the order of the network.
struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};
  bool v6 = false;

  constexpr std::size_t size() const { return v6 ? 16 : 4; }
  constexpr auto operator<=>(const IpAddress&) const = default;  // NOLINT(modernize-use-nullptr)
};

// "10.0.0.1" or "fd00::1". Error: kInvalidArgument.
Result<IpAddress> parse_ip(std::string_view text);
// "02:00:00:00:00:01". Error: kInvalidArgument. A multicast address is no host's.
Result<MacAddress> parse_mac(std::string_view text);
std::string to_string(const IpAddress& address);
std::string to_string(const MacAddress& mac);

// Whether both are of one family and alike in the first `prefix` bits.
bool same_network(const IpAddress& a, const IpAddress& b, std::uint8_t prefix);
// One host's: neither multicast, nor unspecified, nor the broadcast address 255.255.255.255.
bool is_unicast(const IpAddress& address);
inline bool is_unicast(const MacAddress& mac) {
  return (mac[0] & 1) == 0 && mac != MacAddress{};
}

}  // namespace tensorlane::dpdk

template <>
struct std::hash<tensorlane::dpdk::IpAddress> {
  std::size_t operator()(const tensorlane::dpdk::IpAddress& address) const noexcept {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(address.bytes.data()), address.size()});
  }
};
