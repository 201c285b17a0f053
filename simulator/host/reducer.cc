#include "simulator/host/reducer.h"

#include <algorithm>

#include "simulator/host/numbers.h"

namespace tensorlane::simulator {

void ReferenceReducer::reduce(std::byte* out, Dtype out_dtype, std::span<const ports::ReduceSource> sources,
                              std::size_t elements, double divisor) {
  const bool wide =
      std::any_of(sources.begin(), sources.end(), [](const auto& s) { return s.dtype == Dtype::kFloat64; });
  for (std::size_t i = 0; i < elements; ++i) {
    double sum = load_element(sources[0].data, sources[0].dtype, i);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const double next = load_element(sources[s].data, sources[s].dtype, i);
      // A sum of two floats in double, rounded to float, is the float sum: 53 bits are more than twice 24 plus 2.
      sum = wide ? sum + next : static_cast<double>(static_cast<float>(sum + next));
    }
    if (divisor != 1)
      sum = wide ? sum / divisor : static_cast<double>(static_cast<float>(sum) / static_cast<float>(divisor));
    store_element(out, out_dtype, i, sum);
  }
}

}  // namespace tensorlane::simulator
