// The kernels on a CPU, for a driver without a GPU (tests/cuda): no part of the library.
#pragma once

#include <cstdint>
#include <string_view>

#include "client-lib/src/cuda/kernels/sources.h"

namespace tensorlane::client::cuda {

// What the combining kernel of this name (kernel_name()) does, on memory of the host: `out`, and the addresses in
// `sources`. False: there is no such kernel.
bool combine_on_host(std::string_view kernel, void* out, const KernelSources& sources, std::uint32_t count,
                     std::uint64_t elements);
// The same of the finishing kernel of this name (finish_kernel_name()).
bool finish_on_host(std::string_view kernel, void* out, const void* in, std::uint64_t elements, double divisor);

}  // namespace tensorlane::client::cuda
