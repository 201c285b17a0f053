// What a lab is made of, computed from the fabric: nodes, their ports, and the lines that `ip` and `tc` carry out.
// Pure: nothing here touches the machine.
//
// Every port, of a switch and of a host's NIC, is one HTB class at the link's speed. Under the policy `service` it is
// what lab_service.h says; else it is over these queues:
//   strict  one per class by exact DSCP, served in strict priority: control, then the data classes by rank, then
//   everything else.
//           The port's buffer is divided: 1/8 control, 1/8 everything else, the rest evenly among the data classes.
//   fifo    one queue with the whole buffer.
// So both policies have the same bytes of buffer. Both sets of queues are always there and a filter in front says which
// is used: changing the policy is one line per port and loses no packet. ARP and IPv6 neighbour discovery go with
// control, or saturation would cut hosts off; in a routed lab (lab_routes.h), which needs neither, all goes by DSCP. A
// frame on a VLAN goes by its packet's DSCP, too.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"

namespace tensorlane::cli {

enum class Policy { kFifo, kStrict, kService };
inline constexpr std::array<std::string_view, 3> kPolicyNames{"fifo", "strict", "service"};
constexpr std::string_view policy_name(Policy policy) {
  return kPolicyNames[static_cast<std::size_t>(policy)];
}
// One of kPolicyNames; kInvalidArgument otherwise.
Result<Policy> parse_policy(std::string_view text);

// The largest packet that a host hands to its NIC (segmentation offload): what an urgent packet may have to wait for in
// every port.
inline constexpr Bytes kMaxPacket = kib(16);

// What the switches are: bridges, or routers (lab_routes.h).
enum class Switching { kBridged, kRouted };

// One in each family.
struct Addresses {
  std::string v4, v6;
};

struct Port {
  std::string device;  // as in the fabric file, else "eth0" in a host, the neighbour's name in a switch
  std::string peer;    // node at the other end
  BitsPerSecond speed{};
  Bytes buffer{};
  std::uint32_t mtu = 1500;
  std::string address;                   // of a host: that of the rail
  std::vector<std::string> others;       // addresses that are reached by it; none: all of them
  std::string rdma_address;              // of the rail, where the fabric file states one other than `address`
  std::vector<std::string> rdma_others;  // of the rail, of the other hosts that have one
  Policy policy = Policy::kStrict;
  Addresses both;    // of a host in a routed lab: `address`, and the one of the other family
  unsigned end = 0;  // in a routed lab: number of this end of the cable; the other end's is `end ^ 1`
};

// How a node of a routed lab reaches an address, or with prefixes of length 0 all addresses.
struct Route {
  Addresses to;                    // with lengths: "10.77.0.3/32"
  std::vector<std::size_t> ports;  // positions in Node::ports; several: shortest paths that share the flows
};

struct Node {
  std::string name;  // in the fabric
  std::string ns;    // network namespace: "tl-LAB-NAME"
  bool is_switch = false;
  std::string address;        // of a host: its first port's
  bool is_guest = false;      // the host is a virtual machine in this namespace: lab_guest.h
  std::size_t queues = 1;     // of each NIC of a guest, to send
  std::vector<Port> ports;    // of a host: by rail
  bool is_routed = false;     // of a routed lab
  Addresses loopback;         // of a switch in a routed lab
  std::vector<Route> routes;  // in a routed lab
};

struct Cable {
  std::size_t node_a, port_a, node_b, port_b;  // positions in LabPlan::nodes and Node::ports
};

struct LabPlan {
  fabric::ClassTable classes;
  std::vector<Node> nodes;  // hosts first
  std::vector<Cable> cables;

  const Node* find(std::string_view name) const;
};

// A port by what people write: "NODE:DEVICE", or "NODE:NEIGHBOUR" where one port of the node leads there. kNotFound;
// kInvalidArgument where several do.
struct PortPlace {
  std::size_t node, port;
};
Result<PortPlace> find_port(const LabPlan& plan, std::string_view text);

// Writes the lab's devices into the links of the fabric that it is the plan of, where they name none, and its addresses
// into the switches of a routed lab, so that what the fabric file says is what is there. Switches that list their ports
// stay as they are.
void name_ports(const LabPlan& plan, fabric::Fabric& fabric);

// A guest's cable of a rail, beside the port in one of its namespace's bridges.
std::string guest_tap(std::size_t rail);

// Whether an address that inet_pton() takes is an IPv6 one.
bool is_ipv6(const std::string& address);

// "tl-LAB-": what the namespaces of one lab, and of no other, begin with.
std::string namespace_prefix(const std::string& lab);

// kInvalidArgument, with FILE:LINE, for what a lab cannot be: a host whose links are not as many as its rails, a tcp
// address that is a name, a buffer too small for its queues; with bridges switches in a loop (bridges need a tree) and
// a host whose rails meet in the switches; with routers what add_routes() refuses. `buffer` is for links that state
// none.
Result<LabPlan> plan_lab(const fabric::Fabric& fabric, const std::string& lab, Bytes buffer,
                         Switching switching = Switching::kBridged);

// Lines for `ip -batch`, in the namespace of the caller: namespaces, then cables between them.
std::string namespace_lines(const LabPlan& plan);
std::string cable_lines(const LabPlan& plan);
// Lines for `ip -n NS -batch`: addresses, routes, bridge; of a routed lab those of lab_routes.h.
std::string address_lines(const Node& node);
// Lines for `tc -n NS -batch`: the queues of all ports, each set to its policy, strict or fifo; the end of whatever
// queues are there; and a port's change from the other one of the two.
std::string queue_lines(const Node& node, const fabric::ClassTable& classes);
std::string no_queue_lines(const Node& node);
std::string policy_line(const Port& port, Policy policy);

}  // namespace tensorlane::cli
