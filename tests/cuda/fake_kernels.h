// What the fake driver knows of kernels: modules, their functions, and launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "client-lib/src/cuda/kernels/sources.h"

namespace tensorlane::fake_cuda {

struct Module {
  int device;
  bool alive = true;
  int queued = 0;  // launches of its functions that have not ended
};

struct Function {
  std::shared_ptr<Module> module;
  std::string name;
  std::size_t element_bytes;
};

// A launch of one of the library's kernels (client-lib/src/cuda/kernels.h) with its parameters, but for where the
// result goes.
struct Launch {
  std::shared_ptr<Function> function;
  client::cuda::KernelSources sources;
  std::uint32_t count;
  std::uint64_t elements;
  double divisor;
};

}  // namespace tensorlane::fake_cuda
