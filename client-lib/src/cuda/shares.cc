#include "client-lib/src/cuda/shares.h"

#include <algorithm>

namespace tensorlane::client::cuda {

std::vector<Shares::Range> cut(std::uint64_t elements, std::uint64_t element_bytes, std::uint32_t ranks) {
  constexpr std::uint64_t kUnit = 64;
  const std::uint64_t bytes = elements * element_bytes, units = (bytes + kUnit - 1) / kUnit;
  std::vector<Shares::Range> ranges;
  for (std::uint64_t rank = 0, first = 0; rank < ranks; ++rank) {
    const std::uint64_t next = units * (rank + 1) / ranks;
    ranges.push_back({first * kUnit, std::min(next * kUnit, bytes) - first * kUnit});
    first = next;
  }
  return ranges;
}

}  // namespace tensorlane::client::cuda
