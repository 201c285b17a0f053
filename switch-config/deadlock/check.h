// Whether lossless traffic can stop itself for good: cyclic buffer dependencies, and the single failures that cause
// them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "switch-config/deadlock/network.h"

namespace tensorlane::deadlock {

// An ingress buffer: that of `node` at the port towards `from`.
struct Hop {
  std::string node, port, from;  // port is empty where it is not known

  bool operator==(const Hop&) const = default;
};

// "leaf1 Ethernet0 (from spine1)"
std::string to_text(const Hop& hop);

// Buffers that wait for each other: each for the next, the last for the first.
struct Cycle {
  std::vector<Hop> hops;
  std::string failure;  // "link leaf1 - spine1", "switch spine1"; empty: as the network is
};

// A route that goes up again after it went down. One alone may close no cycle; `cycle` is the one that closes as soon
// as the other switches of this level do the same, and empty if there is none even then.
struct Bounce {
  std::string route;  // "h0 > leaf1 > spine1 > leaf2 > spine2 > leaf3 > h5"
  std::string node;   // where it turns
  std::vector<Hop> cycle;
};

struct Report {
  std::vector<Cycle> cycles;  // at most kMaxCycles of the network as it is; of the failures one each
  std::vector<Bounce> bounces;
  std::size_t unreached_pairs = 0;  // of switches with hosts, one way each, that no route joins
  std::size_t failures_tried = 0;
};

inline constexpr std::size_t kMaxCycles = 16;

// `single_failures`: also without each link and each switch, one at a time and with routes recomputed. They are tried
// only on a network that has no cycle as it is; named routes are never replaced by others.
Report check(const Network& network, bool single_failures);

}  // namespace tensorlane::deadlock
