// What is connected to what: hosts and switches as nodes, links with a rate and a delay, and the shortest ways.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"

namespace tensorlane::simulator {

using NodeIndex = std::uint32_t;

// Both directions alike.
struct Cable {
  NodeIndex a = 0, b = 0;
  BitsPerSecond rate;
  Duration delay;
};

// Hosts are nodes 0 to hosts - 1, switches follow.
struct Topology {
  std::uint16_t hosts = 0;
  NodeIndex nodes = 0;
  std::vector<Cable> cables;
};

// Hosts around one switch.
Topology star(std::uint16_t hosts, BitsPerSecond rate, Duration delay);

// A fabric file's hosts, switches and links; the delay is the light's in the cable (5 ns per metre) and `per_hop`.
// InvalidArgument when a host has no link, which way some hosts cannot reach each other.
Result<Topology> topology_of(const fabric::Fabric& fabric, Duration per_hop);

// By [node][host]: the cables that are the first of a shortest way from the node to the host. Never empty where a way
// exists; a flow takes one of them and keeps it.
using Routes = std::vector<std::vector<std::vector<std::uint32_t>>>;
Routes shortest_routes(const Topology& topology);

}  // namespace tensorlane::simulator
