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
// control, or saturation would cut hosts off. A frame on a VLAN goes by its packet's DSCP, too.
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
};

struct Node {
  std::string name;  // in the fabric
  std::string ns;    // network namespace: "tl-LAB-NAME"
  bool is_switch = false;
  std::string address;      // of a host: its first port's
  bool is_guest = false;    // the host is a virtual machine in this namespace: lab_guest.h
  std::vector<Port> ports;  // of a host: by rail
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

// Writes the lab's devices into the links of the fabric that it is the plan of, where they name none, so that what the
// fabric file says is what is there. Switches that list their ports stay as they are.
void name_ports(const LabPlan& plan, fabric::Fabric& fabric);

// A guest's cable of a rail, beside the port in one of its namespace's bridges.
std::string guest_tap(std::size_t rail);

// Whether an address that inet_pton() takes is an IPv6 one.
bool is_ipv6(const std::string& address);

// "tl-LAB-": what the namespaces of one lab, and of no other, begin with.
std::string namespace_prefix(const std::string& lab);

// kInvalidArgument, with FILE:LINE, for what a lab cannot be: a host whose links are not as many as its rails, a tcp
// address that is a name, switches in a loop (bridges need a tree), a host whose rails meet in the switches, a buffer
// too small for its queues. `buffer` is for links that state none.
Result<LabPlan> plan_lab(const fabric::Fabric& fabric, const std::string& lab, Bytes buffer);

// Lines for `ip -batch`, in the namespace of the caller: namespaces, then cables between them.
std::string namespace_lines(const LabPlan& plan);
std::string cable_lines(const LabPlan& plan);
// Lines for `ip -n NS -batch`: addresses, routes, bridge.
std::string address_lines(const Node& node);
// Lines for `tc -n NS -batch`: the queues of all ports, set to strict; the end of whatever queues are there; and the
// change between strict and fifo.
std::string queue_lines(const Node& node, const fabric::ClassTable& classes);
std::string no_queue_lines(const Node& node);
std::string policy_lines(const Node& node, Policy policy);

}  // namespace tensorlane::cli
