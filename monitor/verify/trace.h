// The way of each flow as far as it is known: the nodes that it passes, and what was seen of its marks at each.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "monitor/verify/observations.h"
#include "monitor/verify/topology.h"

namespace tensorlane::verify {

struct TraceNode {
  // Of the host or switch; "spine1 or spine2 (ADDRESS)" or "hop ADDRESS" where that is not known; empty: nothing is.
  std::string name;
  std::string address;  // by which it has answered; empty: did not
  // With what mark the flow came here; of the sender, with what it left.
  std::optional<int> dscp;
  bool is_host = false;

  auto operator<=>(const TraceNode&) const = default;
};

struct Trace {
  std::vector<TraceNode> nodes;  // sender first, receiver last
  bool complete = false;         // no node is missing between them, though some may have no name
  bool swept = false;            // hops were asked

  auto operator<=>(const Trace&) const = default;
};

// One for each flow, in their order. Hops are named by the addresses of the fabric file's switches, else by its ways:
// an address belongs to the switch that is on every way of every flow that met the address at this distance.
std::vector<Trace> trace_all(const Observations& seen, const Topology& topology);

}  // namespace tensorlane::verify
