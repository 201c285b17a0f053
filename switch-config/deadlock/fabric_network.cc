#include "switch-config/deadlock/fabric_network.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace tensorlane::deadlock {
namespace {

using findings::Finding;
using findings::Severity;

class Builder {
 public:
  explicit Builder(const fabric::Fabric& fabric) : fabric_(fabric) {}

  Result<Network> build(std::optional<Routing> routing) {
    for (const auto& host : fabric_.hosts) add(host.name, 0);
    for (const auto& sw : fabric_.switches) add(sw.name, static_cast<unsigned>(sw.role));
    for (const auto& link : fabric_.links)
      network_.links.push_back({index_.at(link.from), index_.at(link.to), link.from_port, link.to_port});
    const bool roles = std::all_of(fabric_.switches.begin(), fabric_.switches.end(),
                                   [](const auto& sw) { return sw.role != fabric::Role::kUnset; });
    if (!roles) measure_levels();
    network_.routing = routing.value_or(fabric_.routing.up_down ? Routing::kUpDown : Routing::kGiven);
    for (const auto& route : fabric_.routing.routes) {
      TL_ASSIGN_OR_RETURN(auto nodes, nodes_of(route));
      TL_RETURN_IF_ERROR(check_linked(route, nodes));
      network_.routes.push_back(std::move(nodes));
    }
    for (const auto& vlan : fabric_.routing.flooding) {
      TL_ASSIGN_OR_RETURN(auto nodes, nodes_of(vlan));
      network_.flooding.push_back(std::move(nodes));
    }
    return std::move(network_);
  }

 private:
  void add(const std::string& name, unsigned level) {
    index_[name] = static_cast<NodeIndex>(network_.nodes.size());
    network_.nodes.push_back({name, level});
  }

  // 1 next to a host, one more with every hop from there. A switch that no host reaches is as high as there are
  // switches: nothing comes by it.
  void measure_levels() {
    std::vector<std::vector<NodeIndex>> peers(network_.nodes.size());
    for (const Link& link : network_.links) {
      peers[link.a].push_back(link.b);
      peers[link.b].push_back(link.a);
    }
    const auto hosts = static_cast<NodeIndex>(fabric_.hosts.size());
    std::vector<NodeIndex> queue(hosts);
    for (NodeIndex host = 0; host < hosts; ++host) queue[host] = host;
    for (NodeIndex node = hosts; node < network_.nodes.size(); ++node)
      network_.nodes[node].level = static_cast<unsigned>(network_.nodes.size());
    std::vector<char> seen(network_.nodes.size());
    for (std::size_t head = 0; head < queue.size(); ++head) {
      for (const NodeIndex peer : peers[queue[head]]) {
        if (peer < hosts || seen[peer]) continue;
        seen[peer] = 1;
        network_.nodes[peer].level = network_.nodes[queue[head]].level + 1;
        queue.push_back(peer);
      }
    }
  }

  Status wrong(const fabric::Routing::Route& route, const std::string& what, const std::string& fix) const {
    return Status(Code::kInvalidArgument, what, fmt::format("{}:{}", fabric_.path, route.line), fix);
  }

  Result<std::vector<NodeIndex>> nodes_of(const fabric::Routing::Route& route) const {
    std::vector<NodeIndex> nodes;
    for (const auto& name : route.hops) {
      const auto found = index_.find(name);
      if (found == index_.end())
        return wrong(route, fmt::format("no host or switch is called '{}'", name), "name one that the file lists");
      nodes.push_back(found->second);
    }
    return nodes;
  }

  Status check_linked(const fabric::Routing::Route& route, const std::vector<NodeIndex>& nodes) const {
    for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
      const NodeIndex a = nodes[i], b = nodes[i + 1];
      const bool linked = std::any_of(network_.links.begin(), network_.links.end(), [&](const Link& link) {
        return (link.a == a && link.b == b) || (link.a == b && link.b == a);
      });
      if (!linked)
        return wrong(route, fmt::format("no link joins '{}' and '{}'", route.hops[i], route.hops[i + 1]),
                     "name every switch on the way");
    }
    return {};
  }

  const fabric::Fabric& fabric_;
  Network network_;
  std::map<std::string, NodeIndex> index_;
};

std::string text_of(const std::vector<Hop>& cycle) {
  std::string text;
  for (const Hop& hop : cycle) text += to_text(hop) + " waits for ";
  return text + to_text(cycle.front());
}

std::string place_of(const Hop& hop, unsigned priority) {
  return fmt::format("{} priority {}", hop.port.empty() ? fmt::format("from {}", hop.from) : hop.port, priority);
}

Finding finding_of(const Cycle& cycle, unsigned priority) {
  const std::string when = cycle.failure.empty() ? "" : fmt::format(" without {}", cycle.failure);
  return {
      "L11",
      Severity::kError,
      cycle.hops.front().node,
      place_of(cycle.hops.front(), priority),
      fmt::format("lossless buffers of priority {} wait for each other{}: {}; once full they stay so for good",
                  priority, when, text_of(cycle.hops)),
      "route up and then down only, keep lossless traffic out of flooding, or have a switch drop what turns up again"};
}

Finding finding_of(const Bounce& bounce, unsigned priority) {
  const std::string cycle = bounce.cycle.empty() ? "" : fmt::format(": {}", text_of(bounce.cycle));
  return {"L11",
          Severity::kError,
          bounce.node,
          fmt::format("route {} priority {}", bounce.route, priority),
          fmt::format("the route goes up again at {} after it went down; a second switch that does so closes a cycle{}",
                      bounce.node, cycle),
          "route up and then down only, or move what turns up again to another lossless priority or a lossy class"};
}

}  // namespace

Result<Network> network_of(const fabric::Fabric& fabric, std::optional<Routing> routing) {
  return Builder(fabric).build(routing);
}

findings::Report findings_of(const Report& report, const fabric::ClassTable& classes) {
  findings::Report found;
  for (const fabric::TrafficClass& cls : classes.data) {
    if (!cls.lossless) continue;
    for (const Cycle& cycle : report.cycles) found.findings.push_back(finding_of(cycle, cls.pcp));
    for (const Bounce& bounce : report.bounces) found.findings.push_back(finding_of(bounce, cls.pcp));
  }
  findings::sort(found);
  return found;
}

}  // namespace tensorlane::deadlock
