// How long a transfer takes, from its size: Caramel's linear model, and what follows from it (sections 4.2 and 4.4).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::engine {

// One measured transfer.
struct TransferSample {
  Bytes size;
  Duration time;
};

// The two sizes that Caramel measures (section 4.2); "very similar results with different combinations".
inline constexpr Bytes kSmallSample{64};
inline constexpr Bytes kLargeSample = mib(4);

// f(d) = overhead + d * per_byte, a linear regression. Immutable after fit().
class NetworkModel {
 public:
  // Least squares over samples of at least two sizes. kInvalidArgument for fewer, and where the times do not grow with
  // the size: no model has such a network. Where the line meets size 0 below 0, the overhead is 0.
  static Result<NetworkModel> fit(std::span<const TransferSample> samples);

  // Of a network that is known: `overhead` per transfer, then `rate`, which is not 0.
  static NetworkModel of(Duration overhead, BitsPerSecond rate);

  // f(size), to the nanosecond.
  Duration time(Bytes size) const;

  double overhead_ns() const { return overhead_ns_; }
  double ns_per_byte() const { return ns_per_byte_; }

  // The batching threshold: the least x of at least 1 byte with f(2x) / (2 f(x)) > 0.8 (section 4.2), from which on two
  // transfers cost at most a quarter more than one of both. For a linear f that is where x * per_byte > 1.5 * overhead.
  Bytes threshold() const;

 private:
  NetworkModel(double overhead_ns, double ns_per_byte) : overhead_ns_(overhead_ns), ns_per_byte_(ns_per_byte) {}

  double overhead_ns_;  // at least 0
  double ns_per_byte_;  // more than 0
};

inline constexpr std::uint32_t kDeepest = 8;

// In how many pieces a transfer is split so that moving one overlaps with reducing another: 1 for small ones to 8 for
// large ones, from the size and the batching threshold (section 4.4). The paper leaves the function open; this is the
// most pieces of which none is smaller than the threshold, where splitting starts to cost more than it gains.
constexpr std::uint32_t adaptive_depth(Bytes size, Bytes threshold) {
  if (threshold.value == 0) return kDeepest;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(size.value / threshold.value, 1, kDeepest));
}

}  // namespace tensorlane::engine
