// The face of one set of kernels. Each is compiled from kernels_inline.h for another instruction set.
#pragma once

#include <cstddef>

#include "daemon/ports/reducer.h"

namespace tensorlane::reduce {

// As ports::Reducer::reduce(); at least one source. Plain pointers on purpose: an inline function of the standard
// library that a kernel's file instantiates could be the copy that the linker keeps for the whole program, and it would
// hold instructions that not every machine has.
using Kernel = void (*)(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                        std::size_t elements, ReduceOp op, double divisor);

void reduce_baseline(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                     std::size_t elements, ReduceOp op, double divisor);
void reduce_avx2(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                 std::size_t elements, ReduceOp op, double divisor);
void reduce_avx512(std::byte* out, Dtype out_dtype, const ports::ReduceSource* sources, std::size_t count,
                   std::size_t elements, ReduceOp op, double divisor);

}  // namespace tensorlane::reduce
