// Arithmetic on tensors. CPU kernels in daemon/reduce; GPU kernels come beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/base/dtype.h"

namespace tensorlane::ports {

inline constexpr std::size_t kMaxReduceSources = 64;
// Ranks of a job on one host: what they have is summed in one go.
inline constexpr std::uint32_t kMaxLocalRanks = kMaxReduceSources;

// One source of a sum, with the type its elements have in memory.
struct ReduceSource {
  const std::byte* data = nullptr;
  Dtype dtype{};
};

// out[i] = (((s0[i] o s1[i]) o s2[i]) o ...) / divisor, in the order of `sources`, which the plan fixes and arrival
// never does (step 6); o is what `op` says (common/base/dtype.h; never kAverage, which is a sum with a divisor). 16-bit
// sources are accumulated in float32 and rounded once, when written to `out` of `out_dtype`. float64 accumulates in
// float64. Integers stand among their own dtype alone, and are not divided. `out` may be one of the sources (same
// address and same element size), else they do not overlap. One source is a copy or a conversion. Division by 1 is left
// out. NaNs and infinities pass through. Addresses need no alignment. Any thread.
class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual void reduce(std::byte* out, Dtype out_dtype, std::span<const ReduceSource> sources, std::size_t elements,
                      ReduceOp op, double divisor) = 0;
  // Copies bytes between buffers that do not overlap. Any thread.
  virtual void copy(std::byte* out, const std::byte* source, std::size_t bytes) { std::memcpy(out, source, bytes); }
};

}  // namespace tensorlane::ports
