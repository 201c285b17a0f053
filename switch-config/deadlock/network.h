// What the search for cyclic buffer dependencies looks at: switches, links and the ways that lossless traffic takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorlane::deadlock {

using NodeIndex = std::uint32_t;

struct Node {
  std::string name;
  // Of a switch: its level in the Clos, from 1 next to the hosts upwards. 0: a host.
  unsigned level = 0;

  bool is_host() const { return level == 0; }
};

struct Link {
  NodeIndex a = 0, b = 0;
  std::string a_port, b_port;  // empty: not known
};

enum class Routing {
  // All shortest ways that go up and then down, and nothing that came down goes up again. Links between switches of one
  // level have no direction: traffic may take any number of them at the top of its way.
  kUpDown,
  // All shortest ways, as a routing protocol finds them that nobody told about up and down.
  kShortest,
  // Only `routes`.
  kGiven,
};

struct Network {
  std::vector<Node> nodes;
  std::vector<Link> links;
  Routing routing = Routing::kUpDown;
  // Further ways, each from node to node: every two that follow each other are linked.
  std::vector<std::vector<NodeIndex>> routes;
  // Switches of one VLAN each, in which a packet goes out of every port but the one that it came in by.
  std::vector<std::vector<NodeIndex>> flooding;
};

}  // namespace tensorlane::deadlock
