#include "simulator/network/topology.h"

#include <fmt/format.h>

#include <deque>
#include <map>

namespace tensorlane::simulator {
namespace {
constexpr double kNanosecondsPerMetre = 5;
}  // namespace

Topology star(std::uint16_t hosts, BitsPerSecond rate, Duration delay) {
  Topology t{.hosts = hosts, .nodes = hosts + 1u};
  for (NodeIndex h = 0; h < hosts; ++h) t.cables.push_back({h, hosts, rate, delay});
  return t;
}

Result<Topology> topology_of(const fabric::Fabric& fabric, Duration per_hop) {
  Topology t{.hosts = static_cast<std::uint16_t>(fabric.hosts.size())};
  std::map<std::string, NodeIndex> nodes;
  for (const fabric::Host& host : fabric.hosts) nodes.emplace(host.name, t.nodes++);
  for (const fabric::Switch& one : fabric.switches) nodes.emplace(one.name, t.nodes++);
  for (const fabric::Link& link : fabric.links) {
    const auto metres = static_cast<std::int64_t>(link.cable_metres * kNanosecondsPerMetre);
    t.cables.push_back({nodes.at(link.from), nodes.at(link.to), link.speed, per_hop + Duration(metres)});
  }
  const Routes routes(t);
  for (std::uint16_t h = 1; h < t.hosts; ++h) {
    if (!routes.ports(0, HostIndex(h)).empty()) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("no links lead from host '{}' to host '{}'", fabric.hosts[0].name, fabric.hosts[h].name),
                  fabric.path, "describe the links of every host under 'links'");
  }
  return t;
}

Routes::Routes(const Topology& topology) : nodes_(topology.nodes) {
  struct Way {
    NodeIndex to;
    std::uint32_t port;
  };
  std::vector<std::vector<Way>> beside(topology.nodes);
  for (std::uint32_t c = 0; c < topology.cables.size(); ++c) {
    beside[topology.cables[c].a].push_back({topology.cables[c].b, 2 * c});
    beside[topology.cables[c].b].push_back({topology.cables[c].a, 2 * c + 1});
  }
  // By [node][host], of the nodes with several cables; from every host backwards.
  std::vector<std::vector<std::vector<std::uint32_t>>> found(topology.nodes);
  for (NodeIndex node = 0; node < topology.nodes; ++node) {
    if (beside[node].size() > 1) found[node].resize(topology.hosts);
  }
  std::vector<NodeIndex> reaches(topology.nodes);  // how many hosts
  for (NodeIndex host = 0; host < topology.hosts; ++host) {
    std::vector<std::uint32_t> distance(topology.nodes, ~0u);
    distance[host] = 0;
    std::deque<NodeIndex> reached{host};
    while (!reached.empty()) {
      const NodeIndex node = reached.front();
      reached.pop_front();
      // Hosts do not forward.
      if (node != host && node < topology.hosts) continue;
      for (const Way& way : beside[node]) {
        if (distance[way.to] == ~0u) {
          distance[way.to] = distance[node] + 1;
          ++reaches[way.to];
          reached.push_back(way.to);
        }
        const std::uint32_t back = way.port ^ 1;
        if (distance[way.to] == distance[node] + 1 && !found[way.to].empty()) found[way.to][host].push_back(back);
      }
    }
  }
  for (NodeIndex node = 0; node < topology.nodes; ++node) {
    const NodeIndex others = topology.hosts - (node < topology.hosts ? 1 : 0);
    if (beside[node].size() == 1 && reaches[node] == others && others > 0) {
      nodes_[node] = {true, static_cast<std::uint32_t>(ports_.size())};
      ports_.push_back(beside[node].front().port);
      continue;
    }
    nodes_[node] = {false, static_cast<std::uint32_t>(begins_.size())};
    for (NodeIndex host = 0; host < topology.hosts; ++host) {
      begins_.push_back(static_cast<std::uint32_t>(ports_.size()));
      if (beside[node].size() != 1) {
        if (!found[node].empty()) ports_.insert(ports_.end(), found[node][host].begin(), found[node][host].end());
        continue;
      }
      // One cable in a network that falls apart: whatever its other end reaches.
      const auto [next, port] = beside[node].front();
      const bool beyond = next >= topology.hosts && host != node && !found[next].empty() && !found[next][host].empty();
      if (host == next || beyond) ports_.push_back(port);
    }
    begins_.push_back(static_cast<std::uint32_t>(ports_.size()));
  }
}

}  // namespace tensorlane::simulator
