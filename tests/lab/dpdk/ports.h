// Real ports at the ends of the cable.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/ethdev_port.h"
#include "network.h"

namespace tensorlane::dpdk::testing {

inline constexpr std::uint16_t kPort = 4791;

inline IpAddress ip(std::string_view text) {
  return parse_ip(text).value();
}

inline Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Host 1 on tla, host 2 on tlb.
inline PortConfig config(int host) {
  PortConfig config;
  config.device = host == 1 ? "net_af_packet1,iface=tla" : "net_af_packet2,iface=tlb";
  config.addresses = {{ip("10.9.0." + std::to_string(host)), 24, std::nullopt},
                      {ip("fd09::" + std::to_string(host)), 64, std::nullopt}};
  config.udp_port = kPort;
  config.queues = {{46, 6}, {34, 4}, {8, 1}};
  config.receive_packets = 512;
  return config;
}

inline std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Copies payloads into packets and gives them to the device. How many it has taken, from the front.
inline std::size_t send(PacketPort& port, std::size_t queue, const Path& path,
                        std::span<const std::span<const std::byte>> payloads) {
  std::size_t taken = 0;
  for (const std::span<const std::byte> payload : payloads) {
    const std::span<std::byte> room = port.room(queue);
    if (room.size() < payload.size() || room.empty()) break;
    std::ranges::copy(payload, room.begin());
    if (!port.commit(queue, path, payload.size())) break;
    ++taken;
  }
  port.flush();
  return taken;
}

// Payloads that arrive within a time; until there are so many.
struct Arrived {
  std::string payload;
  Received packet;  // its payload is gone
};
inline std::vector<Arrived> receive(PacketPort& port, std::size_t most, Duration patience = milliseconds(500)) {
  std::vector<Arrived> all;
  std::array<Received, 64> some;
  const Time end = now() + patience;
  while (all.size() < most && now() < end) {
    const std::size_t count = port.receive(now(), some);
    for (const Received& packet : std::span(some).first(count))
      all.push_back({{reinterpret_cast<const char*>(packet.payload.data()), packet.payload.size()}, packet});
    port.flush();
  }
  return all;
}

inline bool becomes_reachable(PacketPort& port, PeerId peer, PacketPort* other = nullptr) {
  std::array<Received, 64> some;
  for (const Time end = now() + seconds(3); now() < end && !port.reachable(peer);) {
    port.receive(now(), some);
    if (other != nullptr) other->receive(now(), some);
  }
  return port.reachable(peer);
}

// DPDK ends before the process does.
class EalEnd : public ::testing::Environment {
 public:
  void TearDown() override { end_eal(); }
};
inline ::testing::Environment* const eal_end = ::testing::AddGlobalTestEnvironment(new EalEnd);

class PortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = make_network();
    if (!reason.empty()) GTEST_SKIP() << reason;
    const Status status = start_eal({{"--no-huge", "-m", "512", "--no-pci"}});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  static std::unique_ptr<PacketPort> open(const PortConfig& config) {
    auto port = open_port(config);
    EXPECT_TRUE(port.ok()) << port.status().to_string();
    return port.ok() ? std::move(port).value() : nullptr;
  }
};

}  // namespace tensorlane::dpdk::testing
