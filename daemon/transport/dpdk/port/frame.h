// What is in a frame that has arrived. Every byte of it may be a stranger's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// What a NIC says of a frame.
struct FrameNotes {
  std::optional<std::uint16_t> stripped_tci;       // of a VLAN tag that is no longer in the frame
  bool ip_verified = false, udp_verified = false;  // these checksums are right; else they are looked at here
};

// What is this port's.
struct FrameFilter {
  MacAddress mac{};
  std::span<const LocalAddress> addresses;
  std::optional<std::uint16_t> vlan;  // as in PortConfig
  std::uint16_t udp_port = 0;
};

// A packet of ARP (RFC 826) or of neighbour discovery (RFC 4861).
struct NeighbourMessage {
  enum class Kind : std::uint8_t { kQuestion, kAnswer } kind = Kind::kQuestion;
  IpAddress subject;  // who is asked for, an address of this port; or whose MAC address the answer says
  IpAddress sender;   // of a question; unspecified where it only wants to know whether the address is taken
  MacAddress mac{};   // of a question, where the answer goes; of an answer, what it says
};

struct ParsedFrame {
  enum class Kind : std::uint8_t { kDropped, kDatagram, kNeighbour } kind = Kind::kDropped;
  Drop drop = Drop::kShort;    // where dropped
  Received received;           // of a datagram; its payload lies in the frame
  NeighbourMessage neighbour;  // of a packet of ARP or neighbour discovery
};

// Reads nothing outside of `frame`, and writes nothing.
ParsedFrame parse_frame(std::span<std::byte> frame, const FrameNotes& notes, const FrameFilter& filter);

}  // namespace tensorlane::dpdk
