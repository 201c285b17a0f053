#include "simulator/host/reducer.h"

#include <algorithm>

#include "simulator/host/numbers.h"

namespace tensorlane::simulator {

void ReferenceReducer::reduce(std::byte* out, Dtype out_dtype, std::span<const ports::ReduceSource> sources,
                              std::size_t elements, ReduceOp op, double divisor) {
  if (is_integer(out_dtype)) {
    for (std::size_t i = 0; i < elements; ++i) {
      std::int64_t all = load_integer(sources[0].data, out_dtype, i);
      for (std::size_t s = 1; s < sources.size(); ++s)
        all = combine_integers(all, load_integer(sources[s].data, out_dtype, i), op, out_dtype);
      store_integer(out, out_dtype, i, all);
    }
    return;
  }
  const bool wide =
      std::any_of(sources.begin(), sources.end(), [](const auto& s) { return s.dtype == Dtype::kFloat64; });
  for (std::size_t i = 0; i < elements; ++i) {
    double all = load_element(sources[0].data, sources[0].dtype, i);
    for (std::size_t s = 1; s < sources.size(); ++s)
      all = combine(all, load_element(sources[s].data, sources[s].dtype, i), op, wide);
    if (divisor != 1)
      all = wide ? all / divisor : static_cast<double>(static_cast<float>(all) / static_cast<float>(divisor));
    store_element(out, out_dtype, i, all);
  }
}

}  // namespace tensorlane::simulator
