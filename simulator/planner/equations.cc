#include "simulator/planner/equations.h"

#include <algorithm>
#include <cmath>

#include "common/base/assert.h"

namespace tensorlane::simulator {
namespace {

Duration transfer(const Layer& layer, BitsPerSecond rate) {
  std::uint64_t elements = 0;
  for (const Variable& variable : layer.variables) elements += variable.elements;
  const double bits = static_cast<double>(elements) * sizeof(float) * 8;
  return Duration(std::llround(bits * 1e9 / static_cast<double>(rate.value)));
}

}  // namespace

ChainTimes chain_times(const Workload& workload, std::span<const std::size_t> order, BitsPerSecond rate) {
  const std::vector<Layer>& layers = workload.layers;
  const std::size_t count = layers.size();
  TL_ASSERT(order.size() == count && count > 0);
  ChainTimes t;
  t.pulled.resize(count);
  t.forward.resize(count);
  t.backward.resize(count);
  t.pushed.resize(count);
  Duration sum;
  for (std::size_t layer : order) t.pulled[layer] = sum += transfer(layers[layer], rate);
  for (std::size_t l = 0; l < count; ++l) {
    const Duration before = l == 0 ? Duration() : t.forward[l - 1];
    t.forward[l] = std::max(before, t.pulled[l]) + layers[l].forward;
  }
  Duration backward = t.forward[count - 1];
  for (std::size_t l = count; l-- > 0;) {
    t.backward[l] = backward += layers[l].backward;
    const Duration before = l + 1 == count ? Duration() : t.pushed[l + 1];
    t.pushed[l] = std::max(before, t.backward[l]) + transfer(layers[l], rate);
  }
  t.iteration = t.pushed[0];
  return t;
}

}  // namespace tensorlane::simulator
