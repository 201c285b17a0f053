// Two ports of one network, and frames between them.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/transport/dpdk/port/framing.h"

namespace tensorlane::dpdk::testing {

inline constexpr MacAddress kMacA{2, 0, 0, 0, 0, 1}, kMacB{2, 0, 0, 0, 0, 2}, kMacRouter{2, 0, 0, 0, 0, 0xfe};

inline IpAddress ip(std::string_view text) {
  return parse_ip(text).value();
}

// Host 1 or 2 of 10.0.0.0/24 and fd00::/64, with three queues.
inline PortConfig config(int host) {
  PortConfig config;
  config.device = "net_test";
  config.addresses = {{ip("10.0.0." + std::to_string(host)), 24, ip("10.0.0.254")},
                      {ip("fd00::" + std::to_string(host)), 64, std::nullopt}};
  config.udp_port = 4000;
  config.queues = {{46, 6}, {34, 4}, {8, 1}};
  config.vlan = 0;
  return config;
}

// A payload with the headers of `from` in front.
inline std::vector<std::byte> datagram(Framing& from, std::size_t queue, const Path& path, std::string_view payload) {
  std::vector<std::byte> memory(kMaxHeaderBytes + payload.size());
  std::memcpy(memory.data() + kMaxHeaderBytes, payload.data(), payload.size());
  const std::size_t header = from.write(queue, path, memory.data() + kMaxHeaderBytes, payload.size(), {});
  return header == 0 ? std::vector<std::byte>{}
                     : std::vector(memory.end() - static_cast<std::ptrdiff_t>(header + payload.size()), memory.end());
}

inline std::vector<std::byte> discovery(Framing& from, Time now) {
  std::vector<std::byte> frame(kMaxDiscoveryBytes);
  frame.resize(from.next_discovery(now, frame));
  return frame;
}

inline std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lets `from` ask for its peer, and brings question and answer.
inline void introduce(Framing& from, Framing& to, Time now) {
  std::vector<std::byte> question = discovery(from, now);
  to.take(now, question, {});
  std::vector<std::byte> answer = discovery(to, now);
  from.take(now, answer, {});
}

}  // namespace tensorlane::dpdk::testing
