#include "daemon/reduce/half_f16c.h"
#include "daemon/reduce/kernels.h"
#include "daemon/reduce/kernels_inline.h"

namespace tensorlane::reduce {
namespace {

struct Avx2 : F16c {
  static constexpr std::size_t kVectorBytes = 32;
};

}  // namespace

void reduce_avx2(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                 std::size_t elements, ReduceOp op, double divisor) {
  reduce_elements<Avx2>(out, out_dtype, sources, count, elements, op, divisor);
}

}  // namespace tensorlane::reduce
