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

// One of the library's kernels (client-lib/src/cuda/kernels.h).
struct Function {
  std::shared_ptr<Module> module;
  std::string name;
  bool finishes;                           // else it combines
  std::size_t source_bytes, result_bytes;  // of an element
};

// A launch of one with its parameters, but for where the result goes.
struct Launch {
  std::shared_ptr<Function> function;
  client::cuda::KernelSources sources;  // what a kernel that finishes reads is the only one
  std::uint32_t count;
  std::uint64_t elements;
  double divisor;            // of a kernel that finishes
  std::size_t source_bytes;  // of each
};

}  // namespace tensorlane::fake_cuda
