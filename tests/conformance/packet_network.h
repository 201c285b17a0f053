// A network in memory for transports over packet ports: every port reaches every other one, and packets may be lost,
// overtake each other and come twice, as a seed says.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::conformance {

struct NetworkFaults {
  double lost = 0, overtaken = 0, doubled = 0;  // shares of all packets
  std::uint64_t seed = 1;
  std::shared_ptr<const std::uint64_t> held = {};  // a bit for each DSCP of which nothing arrives now
  std::shared_ptr<const bool> full = {};           // devices take no packet now
  Duration neighbour_time = {};                    // until the network says who has the address of a peer
};

// A port with the first of the configuration's addresses, which no other port of this process has. One thread for all.
std::unique_ptr<dpdk::PacketPort> make_network_port(const dpdk::PortConfig& config, const NetworkFaults& faults = {});

}  // namespace tensorlane::conformance
