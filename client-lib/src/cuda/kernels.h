// The kernels that combine the tensors of a host's ranks on a GPU, as an image for Driver::module_load. Each gives the
// bits that daemon/reduce gives for the same sources in the same order.
//
// The parameters of each, in this order: DevicePointer out, KernelSources sources, std::uint32_t count, std::uint64_t
// elements, double divisor. `out` may be one of the sources, else it does not overlap them. Addresses are multiples of
// 16; `count` is 1 to kMaxSources. Integers are not divided. Blocks have kKernelThreads threads in one dimension; a
// grid of any size covers all elements, and several blocks for each multiprocessor keep its memory busy.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "client-lib/src/cuda/kernels/sources.h"
#include "common/base/dtype.h"
#include "common/base/status.h"

namespace tensorlane::client::cuda {

inline constexpr unsigned kKernelThreads = 256;

// A fat binary: machine code for some GPUs, and PTX, which the driver compiles for others that are as new or newer. It
// lives as long as the program. Empty where the build had no nvcc.
std::span<const std::byte> kernel_image();

// What the library loads: that, or the file that TENSORLANE_GPU_KERNELS names (build/cuda-kernels/combine.fatbin of
// another build). Errors: Unavailable (there is neither), what reading the file says.
Result<std::string> wanted_kernels();

// "tl_sum_float32", "tl_min_bfloat16": an average is a sum with a divisor.
std::string kernel_name(ReduceOp op, Dtype dtype);

}  // namespace tensorlane::client::cuda
