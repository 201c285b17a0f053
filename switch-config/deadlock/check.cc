#include "switch-config/deadlock/check.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "switch-config/deadlock/ports.h"
#include "switch-config/deadlock/routes.h"
#include "switch-config/deadlock/waits.h"

namespace tensorlane::deadlock {
namespace {

std::vector<Hop> hops_of(const Network& network, const std::vector<Channel>& cycle) {
  std::vector<Hop> hops;
  for (const Channel channel : cycle) {
    const Link& link = network.links[channel / 2];
    const bool to_b = channel % 2 == 0;
    hops.push_back({network.nodes[to_b ? link.b : link.a].name, to_b ? link.b_port : link.a_port,
                    network.nodes[to_b ? link.a : link.b].name});
  }
  return hops;
}

struct Outcome {
  std::vector<std::vector<Channel>> cycles;
  std::size_t unreached_pairs = 0;
};

Outcome search(const Network& network, const Failure& failure, std::size_t most) {
  const Ports ports(network, failure);
  Waits waits(ports);
  Outcome outcome;
  outcome.unreached_pairs = add_routes(network, ports, waits);
  outcome.cycles = waits.find_cycles(most);
  return outcome;
}

std::string name_of(const Network& network, const Failure& failure) {
  if (failure.node) return "switch " + network.nodes[*failure.node].name;
  const Link& link = network.links[*failure.link];
  return fmt::format("link {} - {}", network.nodes[link.a].name, network.nodes[link.b].name);
}

std::vector<Failure> all_failures(const Network& network) {
  std::vector<Failure> failures;
  for (std::uint32_t i = 0; i < network.links.size(); ++i) failures.push_back({i, std::nullopt});
  for (NodeIndex node = 0; node < network.nodes.size(); ++node)
    if (!network.nodes[node].is_host()) failures.push_back({std::nullopt, node});
  return failures;
}

void try_failures(const Network& network, Report& report) {
  std::set<std::vector<Channel>> known;
  for (const Failure& failure : all_failures(network)) {
    ++report.failures_tried;
    for (const auto& cycle : search(network, failure, 1).cycles) {
      std::vector<Channel> sorted = cycle;
      std::sort(sorted.begin(), sorted.end());
      if (known.size() < kMaxCycles && known.insert(sorted).second)
        report.cycles.push_back({hops_of(network, cycle), name_of(network, failure)});
    }
  }
}

// The shortest cycle through the turn of a route at `at`, if every switch of that level turned all traffic so.
std::vector<Hop> cycle_if_all_turn(const Network& network, const std::vector<NodeIndex>& route, std::size_t at) {
  const Ports ports(network, {});
  Waits waits(ports);
  add_routes(network, ports, waits);
  const unsigned level = network.nodes[route[at]].level;
  for (NodeIndex node = 0; node < network.nodes.size(); ++node) {
    if (network.nodes[node].level != level) continue;
    const auto& own = ports.of(node);
    for (std::size_t in = 0; in < own.size(); ++in)
      for (std::size_t out = 0; out < own.size(); ++out)
        if (own[in].peer != own[out].peer && network.nodes[own[in].peer].level > level &&
            network.nodes[own[out].peer].level > level)
          waits.add(node, in, out);
  }
  const auto in = ports.find(route[at], route[at - 1]);
  return in ? hops_of(network, waits.shortest_through(ports.of(route[at])[*in].in)) : std::vector<Hop>();
}

void find_bounces(const Network& network, Report& report) {
  const auto level = [&](NodeIndex node) { return network.nodes[node].level; };
  for (const auto& route : network.routes) {
    for (std::size_t i = 1; i + 1 < route.size(); ++i) {
      if (level(route[i]) == 0 || level(route[i - 1]) <= level(route[i]) || level(route[i + 1]) <= level(route[i]))
        continue;
      std::string text;
      for (const NodeIndex node : route) text += (text.empty() ? "" : " > ") + network.nodes[node].name;
      report.bounces.push_back({text, network.nodes[route[i]].name, cycle_if_all_turn(network, route, i)});
      break;
    }
  }
}

}  // namespace

std::string to_text(const Hop& hop) {
  return fmt::format("{}{}{} (from {})", hop.node, hop.port.empty() ? "" : " ", hop.port, hop.from);
}

Report check(const Network& network, bool single_failures) {
  Report report;
  const Outcome whole = search(network, {}, kMaxCycles);
  report.unreached_pairs = whole.unreached_pairs;
  for (const auto& cycle : whole.cycles) report.cycles.push_back({hops_of(network, cycle), ""});
  find_bounces(network, report);
  if (single_failures && report.cycles.empty()) try_failures(network, report);
  return report;
}

}  // namespace tensorlane::deadlock
