#include "monitor/cli/lab_routes.h"

#include <arpa/inet.h>

#include <array>
#include <limits>
#include <map>
#include <queue>

#include <fmt/format.h>

namespace tensorlane::cli {

namespace {

constexpr std::size_t kMaxNodes = 250;  // of each kind: a node's number is the last byte of an address
constexpr const char* kOurPrefix = "fd74:6c::";
constexpr const char* kAllV4 = "0.0.0.0/0";
constexpr const char* kAllV6 = "::/0";
constexpr std::size_t kUnreached = std::numeric_limits<std::size_t>::max();

// As the kernel writes it.
std::string canonical(const std::string& address) {
  const int family = is_ipv6(address) ? AF_INET6 : AF_INET;
  std::array<unsigned char, sizeof(in6_addr)> binary{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (inet_pton(family, address.c_str(), binary.data()) != 1) return address;
  return inet_ntop(family, binary.data(), text.data(), text.size());
}

Addresses with_v6(const std::string& v4) {
  return {v4, canonical(kOurPrefix + v4)};
}

Status refused(const fabric::Fabric& fabric, int line, std::string what, std::string fix) {
  return Status(Code::kInvalidArgument, std::move(what), fmt::format("{}:{}", fabric.path, line), std::move(fix));
}

// Gives hosts and switches, which the plan has in the order of the file, their addresses.
Status address_nodes(const fabric::Fabric& fabric, LabPlan& plan) {
  std::map<std::string, const Node*> owners;
  const auto claim = [&](const Node& node, const Addresses& both, int line) {
    for (const std::string& address : {both.v4, both.v6}) {
      const auto [owner, fresh] = owners.emplace(address, &node);
      if (fresh) continue;
      return refused(fabric, line,
                     fmt::format("{} would be an address of '{}' and of '{}'", address, owner->second->name, node.name),
                     "a routed lab derives addresses from fd74:6c::/96 and 198.18.0.0/15; give hosts others");
    }
    return Status::ok_status();
  };
  if (fabric.hosts.size() > kMaxNodes || fabric.switches.size() > kMaxNodes) {
    return refused(fabric, 1, fmt::format("{} hosts and {} switches", fabric.hosts.size(), fabric.switches.size()),
                   fmt::format("a routed lab has at most {} of each", kMaxNodes));
  }
  for (std::size_t n = 0; n < fabric.hosts.size(); ++n) {
    Node& node = plan.nodes[n];
    for (std::size_t rail = 0; rail < node.ports.size(); ++rail) {
      Port& port = node.ports[rail];
      const std::string stated = canonical(port.address);
      port.both = is_ipv6(stated) ? Addresses{fmt::format("198.18.{}.{}", rail, n + 1), stated} : with_v6(stated);
      TL_RETURN_IF_ERROR(claim(node, port.both, fabric.hosts[n].line));
    }
  }
  for (std::size_t n = 0; n < fabric.switches.size(); ++n) {
    Node& node = plan.nodes[fabric.hosts.size() + n];
    node.loopback = with_v6(fmt::format("198.19.0.{}", n + 1));
    TL_RETURN_IF_ERROR(claim(node, node.loopback, fabric.switches[n].line));
  }
  return Status::ok_status();
}

struct End {
  std::size_t node = 0, port = 0;
};

// What is plugged into each port of each node.
using Ends = std::vector<std::vector<End>>;

Ends number_ends(LabPlan& plan) {
  Ends opposite;
  for (const Node& node : plan.nodes) opposite.emplace_back(node.ports.size());
  unsigned next = 2;  // fe80:: and fe80::1 are kept for others
  for (const Cable& cable : plan.cables) {
    plan.nodes[cable.node_a].ports[cable.port_a].end = next++;
    plan.nodes[cable.node_b].ports[cable.port_b].end = next++;
    opposite[cable.node_a][cable.port_a] = {cable.node_b, cable.port_b};
    opposite[cable.node_b][cable.port_b] = {cable.node_a, cable.port_a};
  }
  return opposite;
}

// Hops from every switch to switch `to`; hosts, which pass nothing on, stay unreached.
std::vector<std::size_t> distances(const LabPlan& plan, const Ends& opposite, std::size_t to) {
  std::vector<std::size_t> hops(plan.nodes.size(), kUnreached);
  std::queue<std::size_t> seen;
  hops[to] = 0;
  for (seen.push(to); !seen.empty(); seen.pop()) {
    for (const End& end : opposite[seen.front()]) {
      if (!plan.nodes[end.node].is_switch || hops[end.node] != kUnreached) continue;
      hops[end.node] = hops[seen.front()] + 1;
      seen.push(end.node);
    }
  }
  return hops;
}

// A switch's ports on all shortest paths to the one that `hops` lead to.
std::vector<std::size_t> nearer_ports(const std::vector<End>& opposite, const std::vector<std::size_t>& hops,
                                      std::size_t own_hops) {
  std::vector<std::size_t> ports;
  for (std::size_t p = 0; p < opposite.size(); ++p) {
    if (own_hops != kUnreached && hops[opposite[p].node] == own_hops - 1) ports.push_back(p);
  }
  return ports;
}

// The port by which a host reaches the switch that `hops` lead to: the preferred one, where it leads there, else the
// first of the nearest.
std::vector<std::size_t> host_port(const std::vector<End>& opposite, const std::vector<std::size_t>& hops,
                                   std::size_t preferred) {
  if (preferred < opposite.size() && hops[opposite[preferred].node] != kUnreached) return {preferred};
  std::size_t best = 0;
  for (std::size_t p = 1; p < opposite.size(); ++p) {
    if (hops[opposite[p].node] < hops[opposite[best].node]) best = p;
  }
  if (hops[opposite[best].node] == kUnreached) return {};
  return {best};
}

// An address to route to: behind switch `at`, on rail `rail` of node `owner` or that switch's own.
struct Destination {
  Addresses to;
  std::size_t owner, at, rail;
};

void add_routes_to(const Destination& destination, const Ends& opposite, LabPlan& plan) {
  const std::vector<std::size_t> hops = distances(plan, opposite, destination.at);
  for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
    Node& node = plan.nodes[n];
    std::vector<std::size_t> ports;
    if (n == destination.owner) continue;
    if (!node.is_switch) {
      if (node.ports.size() > 1) ports = host_port(opposite[n], hops, destination.rail);
    } else if (n == destination.at) {
      ports = {opposite[destination.owner][destination.rail].port};
    } else {
      ports = nearer_ports(opposite[n], hops, hops[n]);
    }
    if (!ports.empty()) node.routes.push_back({destination.to, std::move(ports)});
  }
}

std::string link_local(unsigned end) {
  return fmt::format("fe80::{:x}", end);
}

std::string hops_of(const Node& node, const Route& route, std::string_view via) {
  std::string text;
  for (const std::size_t p : route.ports) {
    const Port& port = node.ports[p];
    text += fmt::format("{} {} {} dev {}", route.ports.size() > 1 ? " nexthop" : "", via, link_local(port.end ^ 1),
                        port.device);
  }
  return text;
}

}  // namespace

Status add_routes(const fabric::Fabric& fabric, LabPlan& plan) {
  TL_RETURN_IF_ERROR(address_nodes(fabric, plan));
  const Ends opposite = number_ends(plan);
  for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
    Node& node = plan.nodes[n];
    node.is_routed = true;
    if (node.is_switch) {
      add_routes_to({{node.loopback.v4 + "/32", node.loopback.v6 + "/128"}, n, n, kMaxRails}, opposite, plan);
      continue;
    }
    if (node.ports.size() == 1) node.routes.push_back({{kAllV4, kAllV6}, {0}});
    for (std::size_t rail = 0; rail < node.ports.size(); ++rail) {
      const Addresses& both = node.ports[rail].both;
      add_routes_to({{both.v4 + "/32", both.v6 + "/128"}, n, opposite[n][rail].node, rail}, opposite, plan);
    }
  }
  return Status::ok_status();
}

std::string kernel_script(const Node& node) {
  std::string script = "set -e\ncd /proc/sys/net\n";
  const auto set = [&](std::string_view name, std::string_view value) {
    script += fmt::format("echo {} > {}\n", value, name);
  };
  set("ipv6/conf/default/addr_gen_mode", "1");  // no link-local addresses but ours
  set("ipv4/conf/all/rp_filter", "0");          // the way back may be another one
  set("ipv4/conf/default/rp_filter", "0");
  if (!node.is_switch) return script;
  set("ipv4/ip_forward", "1");
  set("ipv6/conf/all/forwarding", "1");
  // By what the packet says: the policy for layer 4 would take a hash that the sender's kernel draws anew for each
  // socket, and leaves with the packet in a lab.
  for (const std::string_view family : {"ipv4", "ipv6"}) {
    set(fmt::format("{}/fib_multipath_hash_policy", family), "3");
    set(fmt::format("{}/fib_multipath_hash_fields", family), "0x37");  // addresses, protocol, ports
  }
  script += fmt::format("[ ! -e ipv4/fib_multipath_hash_seed ] || echo {} > ipv4/fib_multipath_hash_seed\n",
                        node.ports.empty() ? 1 : node.ports.front().end);
  set("ipv4/icmp_ratelimit", "0");
  set("ipv4/icmp_ratemask", "0");  // nor does the limit of the whole machine count
  set("ipv6/icmp/ratelimit", "0");
  set("ipv6/icmp/ratemask", "''");
  return script;
}

std::string routed_lines(const Node& node) {
  std::string lines = "link set lo up\n";
  const auto add_addresses = [&](const Addresses& both, const std::string& device) {
    lines += fmt::format("addr add {0}/32 dev {2}\naddr add {1}/128 dev {2} nodad\n", both.v4, both.v6, device);
  };
  if (node.is_switch) add_addresses(node.loopback, "lo");
  for (const Port& port : node.ports) {
    lines += fmt::format("link set dev {} mtu {}", port.device, port.mtu);
    lines += node.is_switch ? " up\n" : fmt::format(" gso_max_size {} up\n", kMaxPacket.value);
    lines += fmt::format("addr add {}/64 dev {} nodad\n", link_local(port.end), port.device);
    lines += fmt::format("neigh add {} lladdr {} dev {} nud permanent\n", link_local(port.end ^ 1),
                         end_mac(port.end ^ 1), port.device);
    if (!node.is_switch) add_addresses(port.both, port.device);
  }
  for (const Route& route : node.routes) {
    const Addresses& from = node.is_switch ? node.loopback : node.ports[route.ports.front()].both;
    lines += fmt::format("route add {} src {}{}\n", route.to.v4, from.v4, hops_of(node, route, "via inet6"));
    lines += fmt::format("route add {} src {}{}\n", route.to.v6, from.v6, hops_of(node, route, "via"));
  }
  return lines;
}

std::string end_mac(unsigned end) {
  return fmt::format("02:74:6c:{:02x}:{:02x}:{:02x}", end >> 16 & 0xff, end >> 8 & 0xff, end & 0xff);
}

}  // namespace tensorlane::cli
