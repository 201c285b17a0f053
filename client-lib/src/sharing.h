// What registration knows of groups of tensors that the ranks of a host share on their GPUs.
#pragma once

#include <string>
#include <vector>

#include "client-lib/src/cuda/shared_memory.h"
#include "client-lib/src/process_set.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// An allreduce of at least 256 KiB. The same on all ranks.
bool is_worth_sharing(const tl_tensor_desc_t& desc);

// A group for which the ranks have asked each other. The daemons know it as up to three, of one name, each of a set of
// its own: the host's ranks' meetings, the shares, and the tensors that are not shared.
struct GpuGroup {
  std::vector<SharedSet> parts;
  cuda::Mappings mappings;
  cuda::SharedMemory* sums = nullptr;  // memory for sums that do not lie in the tensors; or null
  std::string why_not;                 // nothing is shared; empty: it is
};

}  // namespace tensorlane::client
