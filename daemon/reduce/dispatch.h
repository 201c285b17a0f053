// Which kernels this machine can run. One file per processor family; CMake chooses.
#pragma once

#include <string>
#include <vector>

#include "daemon/reduce/kernels.h"

namespace tensorlane::reduce {

struct NamedKernel {
  std::string name;
  Kernel kernel;
};
// From the slowest to the fastest; at least one.
std::vector<NamedKernel> runnable_kernels();

}  // namespace tensorlane::reduce
