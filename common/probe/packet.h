// What captured and quoted packets say. Pure: bytes in, facts out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tensorlane::probe {

// Of an IPv4 or IPv6 packet with TCP: what tells the flow and how it is marked.
struct PacketFacts {
  bool ipv6 = false;
  std::uint8_t dscp = 0;
  std::uint8_t hop_limit = 0;
  std::string source, destination;  // numeric
  std::uint16_t source_port = 0, destination_port = 0;
};

// Reads a packet from its network header on; eight bytes of TCP are enough, as much as every hop quotes. Nothing where
// it is no TCP, or too short. IPv6 extension headers are not followed.
std::optional<PacketFacts> read_packet(std::span<const std::uint8_t> packet);

// Of an ICMP message that says that a packet's time to live was over: the packet that it quotes. `message` begins with
// the IPv4 header for ICMP, and with the ICMPv6 header for ICMPv6: what raw sockets deliver.
std::optional<PacketFacts> read_time_exceeded(std::span<const std::uint8_t> message, bool ipv6);

}  // namespace tensorlane::probe
