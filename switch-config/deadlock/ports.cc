#include "switch-config/deadlock/ports.h"

namespace tensorlane::deadlock {

Ports::Ports(const Network& network, const Failure& failure)
    : ports_(network.nodes.size()), has_hosts_(network.nodes.size()), ends_(2 * network.links.size()) {
  for (std::uint32_t i = 0; i < network.links.size(); ++i) {
    const Link& link = network.links[i];
    if (failure.link == i || failure.node == link.a || failure.node == link.b) continue;
    const bool host_a = network.nodes[link.a].is_host();
    const bool host_b = network.nodes[link.b].is_host();
    if (host_a || host_b) {
      has_hosts_[host_a ? link.b : link.a] = 1;
      continue;
    }
    ends_[2 * i] = End{link.b, static_cast<std::uint32_t>(ports_[link.b].size())};
    ends_[2 * i + 1] = End{link.a, static_cast<std::uint32_t>(ports_[link.a].size())};
    ports_[link.a].push_back({link.b, 2 * i + 1, 2 * i});
    ports_[link.b].push_back({link.a, 2 * i, 2 * i + 1});
  }
}

std::optional<std::size_t> Ports::find(NodeIndex node, NodeIndex peer) const {
  for (std::size_t i = 0; i < ports_[node].size(); ++i)
    if (ports_[node][i].peer == peer) return i;
  return std::nullopt;
}

}  // namespace tensorlane::deadlock
