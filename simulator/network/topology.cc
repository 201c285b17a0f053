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
  const Routes routes = shortest_routes(t);
  for (NodeIndex h = 1; h < t.hosts; ++h) {
    if (!routes[0][h].empty()) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("no links lead from host '{}' to host '{}'", fabric.hosts[0].name, fabric.hosts[h].name),
                  fabric.path, "describe the links of every host under 'links'");
  }
  return t;
}

Routes shortest_routes(const Topology& topology) {
  std::vector<std::vector<std::pair<NodeIndex, std::uint32_t>>> beside(topology.nodes);
  for (std::uint32_t c = 0; c < topology.cables.size(); ++c) {
    beside[topology.cables[c].a].emplace_back(topology.cables[c].b, c);
    beside[topology.cables[c].b].emplace_back(topology.cables[c].a, c);
  }
  Routes routes(topology.nodes, std::vector<std::vector<std::uint32_t>>(topology.hosts));
  for (NodeIndex host = 0; host < topology.hosts; ++host) {
    std::vector<std::uint32_t> distance(topology.nodes, ~0u);
    distance[host] = 0;
    std::deque<NodeIndex> reached{host};
    while (!reached.empty()) {
      const NodeIndex node = reached.front();
      reached.pop_front();
      // Hosts do not forward.
      if (node != host && node < topology.hosts) continue;
      for (const auto& [next, cable] : beside[node]) {
        if (distance[next] == ~0u) {
          distance[next] = distance[node] + 1;
          reached.push_back(next);
        }
        if (distance[next] == distance[node] + 1) routes[next][host].push_back(cable);
      }
    }
  }
  return routes;
}

}  // namespace tensorlane::simulator
