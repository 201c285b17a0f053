// What registration and operations know of tensors that the ranks of a host share on their GPUs.
#pragma once

#include <string>
#include <vector>

#include "client-lib/src/cuda/shares.h"
#include "client-lib/src/process_set.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// The library is to allocate this tensor's buffer on a GPU.
bool wants_gpu_memory(const tl_tensor_desc_t& desc);

namespace cuda {
class SharedMemory;
}

// A group of such tensors, as the daemons know it: the host's ranks' meetings, if they share any, the shares, and the
// tensors that they do not share; each a group of its name in a set of its own.
struct GpuGroup {
  cuda::SharedMemory* memory = nullptr;
  std::vector<SharedSet> parts;
  std::string why_not;  // the host's ranks share nothing of it; empty: they do
};

}  // namespace tensorlane::client
