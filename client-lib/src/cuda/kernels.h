// The kernels that combine the tensors of a host's ranks on a GPU, and those that finish what has been combined, as an
// image for Driver::module_load. 16-bit numbers are combined into float32, their accumulator's type, and rounded once,
// when they are finished; the accumulator of any other type is that type.
//
// Combining: out[i] is the i-th elements of all sources, combined. Parameters, in this order: DevicePointer out (of the
// accumulator's type), KernelSources sources, std::uint32_t count (1 to kMaxSources), std::uint64_t elements. The bits
// are those of daemon/reduce for the same sources in the same order and `out` of the accumulator's type.
//
// Finishing: out[i] = in[i] / divisor, rounded to the type of the tensor. Parameters, in this order: DevicePointer out,
// DevicePointer in (of the accumulator's type), std::uint64_t elements, double divisor (1: no division). The bits are
// those of daemon/reduce for the one source `in`. There is nothing to finish of integers.
//
// `out` may be `in`, or one of the sources, where the types of both are the same; else it overlaps none. Addresses are
// multiples of 16. Blocks have kKernelThreads threads in one dimension; a grid of any size covers all elements, and
// several blocks for each multiprocessor keep its memory busy.
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

// What combines: "tl_sum_float32", "tl_min_bfloat16". An average is a sum that is divided when it is finished.
std::string kernel_name(ReduceOp op, Dtype dtype);
// What finishes: "tl_finish_float32". There is none of this name for integers.
std::string finish_kernel_name(Dtype dtype);

}  // namespace tensorlane::client::cuda
