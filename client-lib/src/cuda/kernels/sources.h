// The part of a kernel's parameters that has a type of its own. Included by what nvcc compiles, and so without the
// driver's declarations.
#pragma once

#include <cstddef>

namespace tensorlane::client::cuda {

inline constexpr std::size_t kMaxSources = 16;

// Addresses of a GPU's memory (DevicePointer). A kernel does not look at those beyond the count that it is given.
struct KernelSources {
  unsigned long long at[kMaxSources];
};

}  // namespace tensorlane::client::cuda
