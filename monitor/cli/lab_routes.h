// Switches of a lab that are routers (`tensorlane lab up --routed`). Pure: nothing here touches the machine.
//
// Each switch forwards IPv4 and IPv6, counts the time to live down and answers what is wrong by ICMP, from addresses of
// its own: switch number n of the file (from 0) has 198.19.0.(n + 1) and the IPv6 address that goes with it. Every host
// has an address of each family on each rail. The one that the fabric file does not give follows from what it does:
//   an IPv4 address A      fd74:6c::A, e.g. fd74:6c::a4d:1 for 10.77.0.1
//   an IPv6 address        198.18.RAIL.(n + 1) for host number n of the file (from 0)
//
// Cables have no subnets. Their ends have link-local IPv6 addresses, which are the next hops of both families and whose
// hardware addresses are known from the start: there is neither ARP nor neighbour discovery, and nothing for faults or
// full queues to break but packets. Routes lead along all shortest paths; of several, a flow takes one by its addresses
// and ports. Each switch hashes them with a seed of its own, where the kernel has such a setting (Linux 6.11): what
// path a flow takes depends on the fabric alone, and the second of two choices is not that of the first.
#pragma once

#include <string>

#include "common/base/status.h"
#include "monitor/cli/lab_plan.h"

namespace tensorlane::cli {

// Makes a plan with nodes, ports and cables that of a routed lab: addresses of nodes, numbers of ends, routes. Hosts
// pass nothing on. A host with several rails reaches rail i of others by its own, where it has it.
// kInvalidArgument, with FILE:LINE: more than 250 hosts or switches, an address that two nodes would have.
Status add_routes(const fabric::Fabric& fabric, LabPlan& plan);

// A shell script for the namespace of a node, before it has ports: what its kernel forwards and answers. Only switches
// answer without a limit of rate; hosts are as they come.
std::string kernel_script(const Node& node);

// Lines for `ip -n NS -batch`: addresses, neighbours, routes.
std::string routed_lines(const Node& node);

// The hardware address of an end of a cable.
std::string end_mac(unsigned end);

}  // namespace tensorlane::cli
