#include "monitor/cli/lab_plan.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "monitor/cli/lab_routes.h"

namespace tensorlane::cli {

namespace {

constexpr std::size_t kMaxDevice = 15;  // IFNAMSIZ - 1
// HTB's bucket for the link itself. A tick of its timer at 500 Mbit/s; larger ones let a burst past the rate, smaller
// ones lose rate.
constexpr std::string_view kLinkBurst = "32k";
// A leaf must never be the one that shapes: a ceiling far above the link, and a bucket for it (without one, an urgent
// leaf is over its ceiling for a timer tick now and then, and bulk leaks past).
constexpr std::string_view kLeafShape = "rate 8bit ceil 100gbit cburst 256k";
constexpr int kLowestPriority = 7;  // HTB has eight: with seven data classes, everything else shares the last one's
constexpr unsigned kFirstLeaf = 0x10;
constexpr unsigned kFifoLeaf = 0xf0;
constexpr std::uint64_t kEdgeShare = 8;  // control, and everything else, have 1/8 of the buffer each

Status at_line(const fabric::Fabric& fabric, int line, std::string what, std::string fix) {
  return Status(Code::kInvalidArgument, std::move(what), fmt::format("{}:{}", fabric.path, line), std::move(fix));
}

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> binary{};
  return inet_pton(is_ipv6(text) ? AF_INET6 : AF_INET, text.c_str(), binary.data()) == 1;
}

// Bytes of each queue under strict: control, data classes by rank, everything else.
std::vector<Bytes> queue_sizes(Bytes buffer, std::size_t data_classes) {
  const Bytes edge(buffer.value / kEdgeShare);
  std::vector<Bytes> sizes(data_classes + 2, Bytes((buffer.value - 2 * edge.value) / data_classes));
  sizes.front() = sizes.back() = edge;
  return sizes;
}

// A queue takes at least two of the largest packets, or it would drop them all.
Bytes smallest_buffer(std::size_t data_classes) {
  const std::uint64_t queue = 2 * kMaxPacket.value;
  return Bytes(std::max(queue * kEdgeShare, (queue * data_classes * kEdgeShare + kEdgeShare - 3) / (kEdgeShare - 2)));
}

// The port's name of the fabric file where it can be a device's, else of a switch's port the neighbour's name.
std::string device_towards(const Node& from, const std::string& port, const std::string& peer) {
  const auto taken = [&](const std::string& name) {
    return std::ranges::find(from.ports, name, &Port::device) != from.ports.end();
  };
  const auto usable = [&](const std::string& name) {
    const bool ours = name == "br0" || name == "lo" || name.starts_with("vm");  // of every lab, and of guests
    return !name.empty() && name.size() <= kMaxDevice && name.find('/') == name.npos && name != "." && name != ".." &&
           !ours && !taken(name);
  };
  if (usable(port)) return port;
  if (from.is_switch && usable(peer)) return peer;
  std::size_t n = from.ports.size();
  const char* const kind = from.is_switch ? "port" : "eth";
  while (taken(fmt::format("{}{}", kind, n))) ++n;
  return fmt::format("{}{}", kind, n);
}

// Which switches are connected so far: union-find.
class Islands {
 public:
  explicit Islands(std::size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0u); }
  // False when they were connected already.
  bool join(std::size_t a, std::size_t b) {
    a = root(a);
    b = root(b);
    parent_[a] = b;
    return a != b;
  }
  bool joined(std::size_t a, std::size_t b) const { return root(a) == root(b); }

 private:
  std::size_t root(std::size_t a) const {
    while (parent_[a] != a) a = parent_[a];
    return a;
  }
  std::vector<std::size_t> parent_;
};

Status check_hosts(const fabric::Fabric& fabric) {
  for (const fabric::Host& host : fabric.hosts) {
    for (const std::string& address : host.addresses.at("tcp")) {
      if (is_address(address)) continue;
      return at_line(fabric, host.line, fmt::format("the tcp address '{}' of host '{}' is a name", address, host.name),
                     "a lab gives hosts their addresses itself; write an IPv4 or IPv6 address");
    }
    const auto is_own = [&](const fabric::Link& link) { return link.from == host.name; };
    const auto links = std::count_if(fabric.links.begin(), fabric.links.end(), is_own);
    if (static_cast<std::size_t>(links) == host.rails()) continue;
    return at_line(fabric, host.line, fmt::format("host '{}' has {} links", host.name, links),
                   host.rails() == 1 ? "a lab needs exactly one link from each host to a switch"
                                     : fmt::format("a lab needs {} of it: one for each rail", host.rails()));
  }
  return Status::ok_status();
}

// The rails of a host in switches that are connected would answer for each other's addresses.
Status check_rails(const fabric::Fabric& fabric, const LabPlan& plan, const Islands& islands) {
  const auto position = [&](const std::string& name) {
    return static_cast<std::size_t>(plan.find(name) - plan.nodes.data());
  };
  for (const fabric::Host& host : fabric.hosts) {
    const std::vector<Port>& ports = plan.find(host.name)->ports;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!islands.joined(position(ports[i].peer), position(ports[j].peer))) continue;
        return at_line(fabric, host.line,
                       fmt::format("rails {} and {} of host '{}' meet in the switches", j, i, host.name),
                       "give each rail of a lab switches of its own, or make the switches routers with --routed");
      }
    }
  }
  return Status::ok_status();
}

// A host's address for RDMA on a rail, where it is one of its own.
const std::string* own_rdma_address(const fabric::Host& host, RailIndex rail) {
  const std::string* rdma = host.find_address("rdma", rail);
  return rdma == nullptr || *rdma == host.tcp_address(rail) ? nullptr : rdma;
}

// Port i of a host has its addresses of rail i, and leads to the others' addresses of rail i.
void add_addresses(const fabric::Fabric& fabric, LabPlan& plan) {
  for (const fabric::Host& host : fabric.hosts) {
    Node& node =
        *std::find_if(plan.nodes.begin(), plan.nodes.end(), [&](const Node& n) { return n.name == host.name; });
    for (std::uint8_t r = 0; r < node.ports.size(); ++r) {
      Port& port = node.ports[r];
      const RailIndex rail(r);
      port.address = host.tcp_address(rail);
      if (const std::string* rdma = own_rdma_address(host, rail)) port.rdma_address = *rdma;
      for (const fabric::Host& other : fabric.hosts) {
        if (other.name == host.name || r >= other.rails()) continue;
        if (node.ports.size() > 1) port.others.push_back(other.tcp_address(rail));
        if (const std::string* rdma = own_rdma_address(other, rail)) port.rdma_others.push_back(*rdma);
      }
    }
  }
}

std::string bridge_lines(const std::string& bridge) {
  return fmt::format("link add {0} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set dev {0} up\n",
                     bridge);
}

std::string bridged_lines(const std::string& device, std::uint32_t mtu, const std::string& bridge) {
  return fmt::format("link set dev {} mtu {} master {} up\n", device, mtu, bridge);
}

// HTB classes, queues and filters of one port. ARP and neighbour discovery, where there are any, go with control.
void add_port_lines(const Port& port, const fabric::ClassTable& classes, bool discovers, std::string& lines) {
  const auto add = [&](std::string_view object, const std::string& rest) {
    lines += fmt::format("{} add dev {} {}\n", object, port.device, rest);
  };
  std::vector<std::uint8_t> dscps{classes.control.dscp};
  for (const fabric::TrafficClass& cls : classes.data) dscps.push_back(cls.dscp);
  const std::vector<Bytes> sizes = queue_sizes(port.buffer, classes.data.size());
  const std::size_t quantum = port.mtu + 14;
  add("qdisc", fmt::format("root handle 1: htb default {:x}", kFirstLeaf + dscps.size()));
  add("class", fmt::format("parent 1: classid 1:1 htb rate {0}bit ceil {0}bit burst {1} cburst {1} quantum {2}",
                           port.speed.value, kLinkBurst, quantum));
  const auto add_leaf = [&](unsigned minor, int priority, Bytes size) {
    add("class",
        fmt::format("parent 1:1 classid 1:{:x} htb {} prio {} quantum {}", minor, kLeafShape, priority, quantum));
    add("qdisc", fmt::format("parent 1:{0:x} handle {0:x}: bfifo limit {1}", minor, size.value));
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    add_leaf(kFirstLeaf + static_cast<unsigned>(i), std::min(static_cast<int>(i), kLowestPriority), sizes[i]);
  }
  add_leaf(kFifoLeaf, 0, port.buffer);
  // Preference 1 is left for the policy's filter.
  if (discovers) {
    add("filter", fmt::format("parent 1: protocol arp prio 2 u32 match u32 0 0 flowid 1:{:x}", kFirstLeaf));
    add("filter",
        fmt::format("parent 1: protocol ipv6 prio 3 u32 match ip6 protocol 58 0xff flowid 1:{:x}", kFirstLeaf));
    // What follows a VLAN tag is where u32 begins to look: ARP by its hardware type, ICMPv6 and the rest by version.
    add("filter",
        fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u16 0x0001 0xffff at 0 flowid 1:{:x}", kFirstLeaf));
    add("filter",
        fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u8 0x60 0xf0 at 0 match u8 58 0xff at 6 flowid 1:{:x}",
                    kFirstLeaf));
  }
  for (std::size_t i = 0; i < dscps.size(); ++i) {
    const unsigned tos = static_cast<unsigned>(dscps[i]) << 2;
    const unsigned leaf = kFirstLeaf + static_cast<unsigned>(i);
    add("filter", fmt::format("parent 1: protocol ip prio 4 u32 match ip dsfield {:#x} 0xfc flowid 1:{:x}", tos, leaf));
    add("filter",
        fmt::format("parent 1: protocol ipv6 prio 5 u32 match ip6 priority {:#x} 0xfc flowid 1:{:x}", tos, leaf));
    add("filter", fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u16 {:#x} 0xf0fc at 0 flowid 1:{:x}",
                              0x4000 | tos, leaf));
    add("filter", fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u16 {:#x} 0xffc0 at 0 flowid 1:{:x}",
                              0x6000 | tos << 4, leaf));
  }
}

}  // namespace

bool is_ipv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

Result<Policy> parse_policy(std::string_view text) {
  for (Policy policy : {Policy::kFifo, Policy::kStrict, Policy::kService}) {
    if (text == policy_name(policy)) return policy;
  }
  return Status(Code::kInvalidArgument, fmt::format("policy '{}'", text), "--policy",
                "expected fifo, strict or service");
}

const Node* LabPlan::find(std::string_view name) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.name == name; });
  return found == nodes.end() ? nullptr : &*found;
}

std::string guest_tap(std::size_t rail) {
  return fmt::format("vm{}", rail);
}

std::string namespace_prefix(const std::string& lab) {
  return "tl-" + lab + "-";
}

Result<LabPlan> plan_lab(const fabric::Fabric& fabric, const std::string& lab, Bytes buffer, Switching switching) {
  TL_RETURN_IF_ERROR(check_hosts(fabric));
  LabPlan plan;
  plan.classes = fabric.classes;
  std::map<std::string_view, std::size_t> positions;
  for (const fabric::Host& host : fabric.hosts) {
    positions[host.name] = plan.nodes.size();
    plan.nodes.push_back({.name = host.name, .ns = namespace_prefix(lab) + host.name, .address = host.tcp_address()});
  }
  for (const fabric::Switch& sw : fabric.switches) {
    positions[sw.name] = plan.nodes.size();
    plan.nodes.push_back({.name = sw.name, .ns = namespace_prefix(lab) + sw.name, .is_switch = true});
  }
  const Bytes smallest = smallest_buffer(plan.classes.data.size());
  Islands islands(plan.nodes.size());
  for (const fabric::Link& link : fabric.links) {
    const Bytes stated = link.buffer.value_or(buffer);
    if (stated < smallest) {
      return at_line(fabric, link.line,
                     fmt::format("a buffer of {} for the link from '{}'", fabric::format_bytes(stated), link.from),
                     fmt::format("a lab with {} data classes needs at least {}", plan.classes.data.size(),
                                 fabric::format_bytes(smallest)));
    }
    const std::size_t a = positions.at(link.from), b = positions.at(link.to);
    if (plan.nodes[a].is_switch && !islands.join(a, b) && switching == Switching::kBridged) {
      return at_line(
          fabric, link.line, fmt::format("the link from '{}' to '{}' closes a loop", link.from, link.to),
          "the bridges of a lab need a tree; leave this link out, or make the switches routers with --routed");
    }
    for (const auto& [from, to, port] : {std::tuple(a, b, link.from_port), std::tuple(b, a, link.to_port)}) {
      Node& node = plan.nodes[from];
      const std::string& peer = plan.nodes[to].name;
      node.ports.push_back({device_towards(node, port, peer), peer, link.speed, stated, link.mtu});
    }
    plan.cables.push_back({a, plan.nodes[a].ports.size() - 1, b, plan.nodes[b].ports.size() - 1});
  }
  if (switching == Switching::kBridged) TL_RETURN_IF_ERROR(check_rails(fabric, plan, islands));
  add_addresses(fabric, plan);
  if (switching == Switching::kRouted) TL_RETURN_IF_ERROR(add_routes(fabric, plan));
  return plan;
}

Result<PortPlace> find_port(const LabPlan& plan, std::string_view text) {
  const std::size_t colon = text.find(':');
  const Node* node = plan.find(text.substr(0, colon));
  if (node == nullptr || colon == std::string_view::npos)
    return Status(Code::kNotFound, fmt::format("no port '{}'", text), "the lab's ports",
                  "expected NODE:DEVICE or NODE:NEIGHBOUR, as `tensorlane lab show` has them");
  const std::string_view wanted = text.substr(colon + 1);
  std::string devices;
  std::optional<PortPlace> found;
  bool several = false;
  for (std::size_t p = 0; p < node->ports.size(); ++p) {
    const PortPlace place{static_cast<std::size_t>(node - plan.nodes.data()), p};
    const Port& port = node->ports[p];
    if (port.device == wanted) return place;
    devices += (devices.empty() ? "" : ", ") + port.device;
    if (port.peer != wanted) continue;
    several = found.has_value();
    found = place;
  }
  if (found && !several) return *found;
  if (several)
    return Status(Code::kInvalidArgument, fmt::format("'{}' has several ports to '{}'", node->name, wanted),
                  std::string(text), "name one by its device: " + devices);
  return Status(Code::kNotFound, fmt::format("no port '{}'", text), fmt::format("'{}'", node->name),
                "expected a port of it: " + devices);
}

void name_ports(const LabPlan& plan, fabric::Fabric& fabric) {
  const auto name = [&](std::size_t node, std::size_t port, std::string& named) {
    const fabric::Switch* listed = fabric.find_switch(plan.nodes[node].name);
    if (named.empty() && (listed == nullptr || listed->ports.empty())) named = plan.nodes[node].ports[port].device;
  };
  for (std::size_t i = 0; i < fabric.links.size(); ++i) {
    const Cable& cable = plan.cables[i];
    name(cable.node_a, cable.port_a, fabric.links[i].from_port);
    name(cable.node_b, cable.port_b, fabric.links[i].to_port);
  }
  for (fabric::Switch& listed : fabric.switches) {
    const Node* node = plan.find(listed.name);
    if (node != nullptr && node->is_routed && listed.addresses.empty())
      listed.addresses = {node->loopback.v4, node->loopback.v6};
  }
}

std::string namespace_lines(const LabPlan& plan) {
  std::string lines;
  for (const Node& node : plan.nodes) lines += fmt::format("netns add {}\n", node.ns);
  return lines;
}

std::string cable_lines(const LabPlan& plan) {
  std::string lines;
  for (const Cable& cable : plan.cables) {
    const Node& a = plan.nodes[cable.node_a];
    const Node& b = plan.nodes[cable.node_b];
    const auto named = [](const Node& node, const Port& port) {
      const std::string mac = node.is_routed ? fmt::format("address {} ", end_mac(port.end)) : "";
      return fmt::format("name {} {}netns {}", port.device, mac, node.ns);
    };
    lines += fmt::format("link add {} type veth peer {}\n", named(a, a.ports[cable.port_a]),
                         named(b, b.ports[cable.port_b]));
  }
  return lines;
}

std::string address_lines(const Node& node) {
  if (node.is_routed) return routed_lines(node);
  std::string lines = "link set lo up\n";
  if (node.is_switch) {
    lines += bridge_lines("br0");
    for (const Port& port : node.ports) lines += bridged_lines(port.device, port.mtu, "br0");
    return lines;
  }
  if (node.is_guest) {
    for (std::size_t r = 0; r < node.ports.size(); ++r) {
      const std::string bridge = fmt::format("br{}", r), tap = guest_tap(r);
      lines += bridge_lines(bridge) +
               fmt::format("tuntap add dev {} mode tap{}\n", tap, node.queues > 1 ? " multi_queue" : "");
      for (const std::string& device : {node.ports[r].device, tap})
        lines += bridged_lines(device, node.ports[r].mtu, bridge);
    }
    return lines;
  }
  for (const Port& port : node.ports) {
    lines += fmt::format("link set dev {} mtu {} gso_max_size {}\nlink set dev {} up\n", port.device, port.mtu,
                         kMaxPacket.value, port.device);
    // Every other host is on the link, whatever the addresses of the fabric file look like.
    const bool v6 = is_ipv6(port.address);
    lines += fmt::format("addr add {}/{} dev {}{}\n", port.address, v6 ? 128 : 32, port.device, v6 ? " nodad" : "");
    if (port.others.empty()) lines += fmt::format("route add {} dev {}\n", v6 ? "::/0" : "0.0.0.0/0", port.device);
    for (const std::string& other : port.others)
      lines += fmt::format("route add {}/{} dev {}\n", other, is_ipv6(other) ? 128 : 32, port.device);
  }
  return lines;
}

std::string queue_lines(const Node& node, const fabric::ClassTable& classes) {
  std::string lines;
  for (const Port& port : node.ports) {
    add_port_lines(port, classes, !node.is_routed, lines);
    if (port.policy == Policy::kFifo) lines += policy_line(port, Policy::kFifo);
  }
  return lines;
}

std::string no_queue_lines(const Node& node) {
  std::string lines;
  for (const Port& port : node.ports) lines += fmt::format("qdisc del dev {} root\n", port.device);
  return lines;
}

std::string policy_line(const Port& port, Policy policy) {
  const bool fifo = policy == Policy::kFifo;
  return fmt::format("filter {} dev {} parent 1: protocol all prio 1{}\n", fifo ? "add" : "del", port.device,
                     fifo ? fmt::format(" u32 match u32 0 0 flowid 1:{:x}", kFifoLeaf) : "");
}

}  // namespace tensorlane::cli
