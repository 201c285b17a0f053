#include "switch-config/deadlock/routes.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tensorlane::deadlock {
namespace {

constexpr unsigned kFar = std::numeric_limits<unsigned>::max() / 2;

// The routes to one switch after another. Traffic on its way up and on its way down is told apart, since what comes
// down may not go up again even where going up would be as short.
class UpDown {
 public:
  UpDown(const Network& network, const Ports& ports, Waits& waits)
      : network_(network), ports_(ports), waits_(waits), by_level_(ports.nodes()) {
    std::iota(by_level_.begin(), by_level_.end(), NodeIndex{0});
    std::stable_sort(by_level_.begin(), by_level_.end(), [&](auto a, auto b) { return level(a) < level(b); });
    ups_.resize(ports.nodes());
    downs_.resize(ports.nodes());
  }

  // Returns how many switches with hosts cannot reach it.
  std::size_t add(NodeIndex destination) {
    measure(destination);
    std::size_t unreached = 0;
    for (NodeIndex node = 0; node < ports_.nodes(); ++node) {
      ups_[node].clear();
      downs_[node].clear();
      if (ports_.has_hosts(node) && way_[node] >= kFar) ++unreached;
    }
    for (const NodeIndex node : by_level_) climb(node, destination);
    for (auto node = by_level_.rbegin(); node != by_level_.rend(); ++node) descend(*node, destination);
    return unreached;
  }

 private:
  unsigned level(NodeIndex node) const { return network_.nodes[node].level; }

  // Hops to the destination: going down only, and going up first where that is needed or shorter.
  void measure(NodeIndex destination) {
    down_.assign(ports_.nodes(), kFar);
    down_[destination] = 0;
    for (const NodeIndex node : by_level_)
      for (const Port& port : ports_.of(node))
        if (level(port.peer) < level(node)) down_[node] = std::min(down_[node], down_[port.peer] + 1);
    way_ = down_;
    for (auto node = by_level_.rbegin(); node != by_level_.rend(); ++node)
      for (const Port& port : ports_.of(*node))
        if (level(port.peer) > level(*node)) way_[*node] = std::min(way_[*node], way_[port.peer] + 1);
  }

  bool goes_up(NodeIndex node, const Port& port) const {
    return level(port.peer) > level(node) && way_[port.peer] + 1 == way_[node];
  }
  bool goes_down(NodeIndex node, const Port& port) const {
    return level(port.peer) < level(node) && down_[port.peer] + 1 == down_[node];
  }

  // Sends what is on its way up at a node: from hosts of it or from below.
  void climb(NodeIndex node, NodeIndex destination) {
    if (node == destination || way_[node] >= kFar || (ups_[node].empty() && !ports_.has_hosts(node))) return;
    const auto& ports = ports_.of(node);
    for (std::size_t out = 0; out < ports.size(); ++out) {
      const bool up = goes_up(node, ports[out]);
      if (!up && !(down_[node] == way_[node] && goes_down(node, ports[out]))) continue;
      for (const std::size_t in : ups_[node]) waits_.add(node, in, out);
      (up ? ups_ : downs_)[ports[out].peer].push_back(ports_.end(ports[out].out)->port);
    }
  }

  void descend(NodeIndex node, NodeIndex destination) {
    if (node == destination || downs_[node].empty()) return;
    const auto& ports = ports_.of(node);
    for (std::size_t out = 0; out < ports.size(); ++out) {
      if (!goes_down(node, ports[out])) continue;
      for (const std::size_t in : downs_[node]) waits_.add(node, in, out);
      downs_[ports[out].peer].push_back(ports_.end(ports[out].out)->port);
    }
  }

  const Network& network_;
  const Ports& ports_;
  Waits& waits_;
  std::vector<NodeIndex> by_level_;
  std::vector<unsigned> down_, way_;
  std::vector<std::vector<std::size_t>> ups_, downs_;  // the ports that traffic on its way up, or down, comes in by
};

// Shortest ways whatever their direction.
class Shortest {
 public:
  Shortest(const Ports& ports, Waits& waits) : ports_(ports), waits_(waits) {}

  std::size_t add(NodeIndex destination) {
    std::vector<unsigned> hops(ports_.nodes(), kFar);
    std::vector<NodeIndex> queue{destination};
    hops[destination] = 0;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      for (const Port& port : ports_.of(queue[head])) {
        if (hops[port.peer] != kFar) continue;
        hops[port.peer] = hops[queue[head]] + 1;
        queue.push_back(port.peer);
      }
    }
    std::vector<std::vector<std::size_t>> ins(ports_.nodes());
    for (std::size_t i = queue.size(); i-- > 1;) {  // from the farthest to the neighbours
      const NodeIndex node = queue[i];
      if (ins[node].empty() && !ports_.has_hosts(node)) continue;
      const auto& ports = ports_.of(node);
      for (std::size_t out = 0; out < ports.size(); ++out) {
        if (hops[ports[out].peer] + 1 != hops[node]) continue;
        for (const std::size_t in : ins[node]) waits_.add(node, in, out);
        ins[ports[out].peer].push_back(ports_.end(ports[out].out)->port);
      }
    }
    std::size_t unreached = 0;
    for (NodeIndex node = 0; node < ports_.nodes(); ++node)
      if (ports_.has_hosts(node) && hops[node] == kFar) ++unreached;
    return unreached;
  }

 private:
  const Ports& ports_;
  Waits& waits_;
};

// Links between switches of one level have no direction, so that traffic may go over several of them.
void add_level_links(const Network& network, const Ports& ports, Waits& waits) {
  for (NodeIndex node = 0; node < ports.nodes(); ++node) {
    const auto& own = ports.of(node);
    const auto level_with = [&](const Port& port) {
      return network.nodes[port.peer].level == network.nodes[node].level;
    };
    for (std::size_t in = 0; in < own.size(); ++in) {
      if (!level_with(own[in])) continue;
      for (std::size_t out = 0; out < own.size(); ++out)
        if (level_with(own[out]) && own[in].peer != own[out].peer) waits.add(node, in, out);
    }
  }
}

// One way from node to node, unless a link of it does not work.
void add_route(const Network& network, const Ports& ports, const std::vector<NodeIndex>& route, Waits& waits) {
  for (std::size_t i = 0; i + 1 < route.size(); ++i) {
    const bool switches = !network.nodes[route[i]].is_host() && !network.nodes[route[i + 1]].is_host();
    if (switches && !ports.find(route[i], route[i + 1])) return;
  }
  for (std::size_t i = 1; i + 1 < route.size(); ++i) {
    const auto& own = ports.of(route[i]);
    for (std::size_t in = 0; in < own.size(); ++in) {
      if (own[in].peer != route[i - 1]) continue;
      for (std::size_t out = 0; out < own.size(); ++out)
        if (own[out].peer == route[i + 1]) waits.add(route[i], in, out);
    }
  }
}

void add_flooding(const Ports& ports, const std::vector<NodeIndex>& members, Waits& waits) {
  std::vector<char> is_member(ports.nodes());
  for (const NodeIndex node : members) is_member[node] = 1;
  const auto member = [&](const Port& port) { return is_member[port.peer] != 0; };
  for (const NodeIndex node : members) {
    const auto& own = ports.of(node);
    for (std::size_t in = 0; in < own.size(); ++in) {
      if (!member(own[in])) continue;
      for (std::size_t out = 0; out < own.size(); ++out)
        if (own[in].peer != own[out].peer && member(own[out])) waits.add(node, in, out);
    }
  }
}

template <typename Routes>
std::size_t add_all(const Ports& ports, Routes routes) {
  std::size_t unreached = 0;
  for (NodeIndex node = 0; node < ports.nodes(); ++node)
    if (ports.has_hosts(node)) unreached += routes.add(node);
  return unreached;
}

}  // namespace

std::size_t add_routes(const Network& network, const Ports& ports, Waits& waits) {
  std::size_t unreached = 0;
  if (network.routing == Routing::kUpDown) {
    unreached = add_all(ports, UpDown(network, ports, waits));
    add_level_links(network, ports, waits);
  } else if (network.routing == Routing::kShortest) {
    unreached = add_all(ports, Shortest(ports, waits));
  }
  for (const auto& route : network.routes) add_route(network, ports, route, waits);
  for (const auto& members : network.flooding) add_flooding(ports, members, waits);
  return unreached;
}

}  // namespace tensorlane::deadlock
