#include "daemon/reduce/kernels.h"
#include "daemon/reduce/kernels_inline.h"

namespace tensorlane::reduce {
namespace {

// What every 64-bit x86 has; on other machines the compiler makes of 16-byte vectors what it can.
struct Baseline {
  static constexpr std::size_t kVectorBytes = 16;
  static void widen(const Half* in, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = half_to_float(in[i]);
  }
  static void narrow(const float* in, Half* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = float_to_half(in[i]);
  }
};

}  // namespace

void reduce_baseline(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                     std::size_t elements, ReduceOp op, double divisor) {
  reduce_elements<Baseline>(out, out_dtype, sources, count, elements, op, divisor);
}

}  // namespace tensorlane::reduce
