// How long an iteration takes when the layers of a model are a chain: Geryon, section II-C, equations 1 to 6.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

// One layer's times (Geryon, table I).
struct ChainLayer {
  Duration forward;   // tau_f
  Duration backward;  // tau_b
  Duration pull;      // tau_p: its parameters, from the server to the worker
  Duration push;      // tau_g: its gradients, from the worker to the server
};

// Equation 6: how long a layer's parameters or gradients take on a link. `link` is not 0.
Duration chain_transfer_time(Bytes layer, BitsPerSecond link);

// By layer, from the beginning of the iteration.
struct ChainTimes {
  std::vector<Duration> pulled;         // t_p, equation 1
  std::vector<Duration> forward_done;   // t_ff, equation 2
  std::vector<Duration> backward_done;  // t_b, equation 3
  std::vector<Duration> pushed;         // t_bf, equation 4
  Duration iteration;                   // tau_iter, equation 5: the first layer's gradients are pushed
};

// `pull_order` names every layer (0 is the first) once: k_1 to k_L. No layers take no time.
// The paper prints t_bf = t_ff + tau_g for the last layer; that pushes its gradients before they are computed, against
// the paper's own prerequisite and equation 3. Here it is t_b + tau_g.
ChainTimes chain_times(std::span<const ChainLayer> layers, std::span<const std::uint32_t> pull_order);

// What pulling from the first to the last layer gains over the reverse: the ratio of the throughputs ("potential
// speedup", figure 4b). 1 where an iteration takes no time.
double chain_potential_speedup(std::span<const ChainLayer> layers);

}  // namespace tensorlane::engine
