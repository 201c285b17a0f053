#include "daemon/engine/batching/network_model.h"

#include <cmath>
#include <limits>

#include "common/base/assert.h"

namespace tensorlane::engine {
namespace {

// A linear f passes 0.8 where x * per_byte = 1.5 * overhead: (a + 2bx) / (2a + 2bx) > 0.8 <=> 0.4 bx > 0.6 a.
constexpr double kOverheads = 1.5;

// Further away than any transfer is long.
constexpr double kFarthest = 9e18;

}  // namespace

Result<NetworkModel> NetworkModel::fit(std::span<const TransferSample> samples) {
  double size = 0, time = 0;
  for (const TransferSample& s : samples) {
    size += static_cast<double>(s.size.value) / static_cast<double>(samples.size());
    time += static_cast<double>(s.time.value) / static_cast<double>(samples.size());
  }
  double squares = 0, products = 0;
  for (const TransferSample& s : samples) {
    const double distance = static_cast<double>(s.size.value) - size;
    squares += distance * distance;
    products += distance * (static_cast<double>(s.time.value) - time);
  }
  if (squares == 0)
    return Status(Code::kInvalidArgument, "the samples have one size only", "network model",
                  "measure a small and a large transfer");
  if (products <= 0)
    return Status(Code::kInvalidArgument, "large transfers take no longer than small ones", "network model",
                  "measure again, with more transfers and nothing else on the network");
  const double slope = products / squares;
  return NetworkModel(std::max(0.0, time - slope * size), slope);
}

NetworkModel NetworkModel::of(Duration overhead, BitsPerSecond rate) {
  TL_ASSERT(overhead >= Duration(0) && rate.value > 0);
  return {static_cast<double>(overhead.value), 8e9 / static_cast<double>(rate.value)};
}

Duration NetworkModel::time(Bytes size) const {
  return Duration(std::llround(std::min(kFarthest, overhead_ns_ + ns_per_byte_ * static_cast<double>(size.value))));
}

Bytes NetworkModel::threshold() const {
  const double limit = kOverheads * overhead_ns_ / ns_per_byte_;
  return Bytes(static_cast<std::uint64_t>(std::floor(std::min(kFarthest, limit))) + 1);
}

}  // namespace tensorlane::engine
