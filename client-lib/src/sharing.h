// What registration knows of groups of tensors that the ranks of a host share on their GPUs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "client-lib/src/cuda/shared_memory.h"
#include "client-lib/src/process_set.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// Whether ranks ask each other if they share something of a group. The same on all ranks.
bool may_be_shared(const std::string& group, std::span<const tl_tensor_desc_t> descs);
// An allreduce of at least 256 KiB.
bool is_worth_sharing(const tl_tensor_desc_t& desc);

// A group for which the ranks have asked each other. The daemons know it as up to three, of one name, each of a set of
// its own: the host's ranks' meetings, the shares, and the tensors that are not shared.
struct GpuGroup {
  GpuGroup() = default;
  GpuGroup(GpuGroup&&) = default;
  GpuGroup& operator=(GpuGroup&&) = default;
  std::vector<SharedSet> parts;
  cuda::Mappings mappings;
  std::vector<cuda::SharedMemory*> lent;  // what the host's other ranks have been told of
  cuda::SharedMemory* sums = nullptr;     // memory for sums that do not lie in the tensors; or null
  std::string why_not;                    // why nothing of it is shared; empty: something is
};

}  // namespace tensorlane::client
