// The iteration time of a chain of layers in closed form, one worker and one server: Geryon, section II-C, equations 1
// to 5. What the simulator must agree with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "simulator/planner/workload.h"

namespace tensorlane::simulator {

struct ChainTimes {
  std::vector<Duration> pulled;    // t_p: by layer, from the start of the iteration (1)
  std::vector<Duration> forward;   // t_ff: the layer's forward pass has ended (2)
  std::vector<Duration> backward;  // t_b (3)
  std::vector<Duration> pushed;    // t_bf (4)
  Duration iteration;              // (5)
};

// `order` names the layers in the order in which their parameters are pulled, each once (k_j). The parameters of a
// layer take elements * 4 bytes / rate, both ways (6).
ChainTimes chain_times(const Workload& workload, std::span<const std::size_t> order, BitsPerSecond rate);

}  // namespace tensorlane::simulator
