#include "daemon/transport/dpdk/port/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

namespace tensorlane::dpdk {

Result<IpAddress> parse_ip(std::string_view text) {
  const std::string copy(text);
  IpAddress address;
  address.v6 = text.find(':') != std::string_view::npos;
  if (inet_pton(address.v6 ? AF_INET6 : AF_INET, copy.c_str(), address.bytes.data()) != 1)
    return Status(Code::kInvalidArgument, fmt::format("\"{}\" is no IP address", text), {},
                  "write 10.0.0.1 or fd00::1");
  return address;
}

Result<MacAddress> parse_mac(std::string_view text) {
  const Status wrong(Code::kInvalidArgument, fmt::format("\"{}\" is no MAC address of a host", text), {},
                     "write 02:00:00:00:00:01");
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 17) return wrong;
  MacAddress mac;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i % 3 == 2) {
      if (text[i] != ':') return wrong;
      continue;
    }
    const char lower = text[i] >= 'A' && text[i] <= 'F' ? static_cast<char>(text[i] - 'A' + 'a') : text[i];
    const std::size_t digit = kDigits.find(lower);
    if (digit == std::string_view::npos) return wrong;
    mac[i / 3] = static_cast<std::uint8_t>(mac[i / 3] << 4 | digit);
  }
  if (!is_unicast(mac)) return wrong;
  return mac;
}

std::string to_string(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.v6 ? AF_INET6 : AF_INET, address.bytes.data(), text.data(), text.size());
  return text.data();
}

std::string to_string(const MacAddress& mac) {
  return fmt::format("{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

bool same_network(const IpAddress& a, const IpAddress& b, std::uint8_t prefix) {
  if (a.v6 != b.v6) return false;
  const std::size_t bits = std::min<std::size_t>(prefix, a.size() * 8), whole = bits / 8;
  if (!std::equal(a.bytes.begin(), a.bytes.begin() + whole, b.bytes.begin())) return false;
  return bits % 8 == 0 || (a.bytes[whole] ^ b.bytes[whole]) >> (8 - bits % 8) == 0;
}

bool is_unicast(const IpAddress& address) {
  if (address.v6) return address.bytes[0] != 0xff && address != IpAddress{.bytes = {}, .v6 = true};
  return address.bytes[0] != 0 && address.bytes[0] != 127 && address.bytes[0] < 224;
}

}  // namespace tensorlane::dpdk
