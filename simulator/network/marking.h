// ECN: what a crowded switch marks.
#pragma once

#include <cstdint>

#include "common/base/units.h"
#include "simulator/network/dcqcn.h"

namespace tensorlane::simulator {

// A switch marks what joins a queue: nothing while at most `k_min` waits there, everything from `k_max` on, and in
// between a packet with a probability that grows to `p_max` (DCQCN, figure 5). The flow that is marked is notified and
// sends slower, by DCQCN.
struct Marking {
  Bytes k_min, k_max;
  double p_max = 0.01;
  std::uint32_t levels = ~1u;  // of service, as bits; control is never marked
  Bytes packet = Bytes(1024);  // what is marked: several that travel together are when any of them is
  DcqcnParameters reaction = {};
};

// That any packet of `bytes` is marked which join a queue of `waits` bytes.
double mark_probability(const Marking& marking, std::uint64_t waits, std::uint64_t bytes);

}  // namespace tensorlane::simulator
