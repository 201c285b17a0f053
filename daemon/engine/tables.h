// From a plan to the engine's tables.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/operation.h"

namespace tensorlane::engine {

struct PlanTables {
  std::vector<Tensor> tensors;
  std::vector<Slice> slices;
  std::vector<Link> links;  // of one tensor: ascending by peer
  std::vector<Source> sources;
  std::vector<SendItem> sends;
  std::vector<std::uint32_t> leaf_sources, result_sends;  // by link
  std::uint32_t barriers = 0;
  std::uint32_t messages = 0;  // control messages that can wait at a time
};

// Whether the tensors already planned are in `plan` as they were. Error: kInvalidArgument (names the tensor).
Status check_known(const PlanTables& tables, const protocol::Plan& plan);

// Checks what `plan` adds against `config`. Errors: kInvalidArgument (names the tensor and the value).
Status check_plan(const EngineConfig& config, const PlanTables& tables, const protocol::Plan& plan);

// Appends the tables of one tensor of a checked plan. Errors: kResourceExhausted, and the tables are then unusable.
Status append_tensor(const EngineConfig& config, const protocol::Plan& plan, const protocol::PlanTensor& tensor,
                     PlanTables* tables);

// Staging pages that one slice of this tensor can need at most at this host, all contributions together.
std::uint64_t pages_of_largest_slice(const PlanTables& tables, const Tensor& tensor);

// The type of a contribution to a slice of `tensor`: my own data alone (`leaf`) or a sum.
inline Dtype wire_dtype(const Tensor& tensor, bool leaf) {
  return leaf ? tensor.leaf_dtype : tensor.partial_dtype;
}

}  // namespace tensorlane::engine
