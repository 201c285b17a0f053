// Networks as a seed draws them, and what probes see in them: the input of the analysis with the truth beside it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/fabric/fabric.h"
#include "monitor/verify/observations.h"
#include "monitor/verify/topology.h"

namespace tensorlane::verify {

// Something that changes marks on a leg: a switch on the way out, which quotes the old mark (late) or the new one.
struct Fault {
  enum class Kind { kOut, kIn, kNode, kSender, kPair, kFifo };
  Kind kind = Kind::kOut;
  std::string node, peer;  // kOut: out of node to peer; kIn: into node from peer; kNode, kSender: node
  std::string from, to;    // kPair: the hosts that alone suffer, at `node`
  bool ipv4 = true, ipv6 = true;
  std::map<int, int> changes;  // marks; -1: lost

  bool suffers(bool is_ipv6) const { return is_ipv6 ? ipv6 : ipv4; }
};

struct Recorded {
  fabric::Fabric fabric;
  bool routed = true;
  std::vector<Fault> faults;  // empty: clean
  Observations seen;
  std::string about;
};

// The same seed draws the same network and fault. `faults`: how many; 0: a clean network.
Recorded record(std::uint64_t seed, std::size_t faults);

}  // namespace tensorlane::verify
