// What is connected to what: hosts and switches as nodes, links with a rate and a delay, and the shortest ways.
#pragma once

#include <cstdint>
#include <span>
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

// The ports by which the shortest ways from a node to a host begin: 2 c for the way from Cable::a to b of cable c,
// 2 c + 1 for the way back. A flow takes one of them and keeps it. Nodes with one cable, which most are, have one entry
// for all hosts: tables of all pairs of a thousand hosts would not fit into a processor's cache.
class Routes {
 public:
  explicit Routes(const Topology& topology);

  // Empty only where no way exists, or it leads from a host to itself.
  std::span<const std::uint32_t> ports(NodeIndex node, HostIndex to) const {
    const Node& n = nodes_[node];
    if (n.only) return {&ports_[n.first], 1};
    const std::uint32_t* begins = &begins_[n.first + to.value];
    return {ports_.data() + begins[0], ports_.data() + begins[1]};
  }

 private:
  struct Node {
    bool only = false;        // one port leads to all hosts
    std::uint32_t first = 0;  // only: in ports_, else in begins_
  };
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> begins_;  // by host, and one more: in ports_
  std::vector<std::uint32_t> ports_;
};

}  // namespace tensorlane::simulator
