#include "daemon/engine/urgency/chain_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/assert.h"

namespace tensorlane::engine {

Duration chain_transfer_time(Bytes layer, BitsPerSecond link) {
  TL_ASSERT(link.value > 0);
  return Duration(std::llround(static_cast<double>(layer.value) * 8e9 / static_cast<double>(link.value)));
}

ChainTimes chain_times(std::span<const ChainLayer> layers, std::span<const std::uint32_t> pull_order) {
  const std::size_t n = layers.size();
  TL_ASSERT(pull_order.size() == n);
  ChainTimes t;
  for (std::vector<Duration>* each : {&t.pulled, &t.forward_done, &t.backward_done, &t.pushed}) each->resize(n);
  if (n == 0) return t;
  Duration now;
  std::vector<bool> seen(n, false);
  for (const std::uint32_t layer : pull_order) {
    TL_ASSERT(layer < n && !seen[layer]);
    seen[layer] = true;
    t.pulled[layer] = now += layers[layer].pull;
  }
  now = Duration(0);
  for (std::size_t l = 0; l < n; ++l) t.forward_done[l] = now = std::max(now, t.pulled[l]) + layers[l].forward;
  for (std::size_t l = n; l-- > 0;) t.backward_done[l] = now += layers[l].backward;
  now = Duration(0);
  for (std::size_t l = n; l-- > 0;) t.pushed[l] = now = std::max(now, t.backward_done[l]) + layers[l].push;
  t.iteration = t.pushed[0];
  return t;
}

double chain_potential_speedup(std::span<const ChainLayer> layers) {
  std::vector<std::uint32_t> order(layers.size());
  std::iota(order.begin(), order.end(), 0);
  const Duration best = chain_times(layers, order).iteration;
  std::reverse(order.begin(), order.end());
  const Duration reverse = chain_times(layers, order).iteration;
  return best == Duration(0) ? 1 : to_seconds(reverse) / to_seconds(best);
}

}  // namespace tensorlane::engine
