// The plan: whatever shapes a tag or a sum, the same on all hosts of a job, versioned (law 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace tensorlane::protocol {

enum class Pattern : std::uint8_t { kRing = 0, kParameterServer = 1 };

// One tensor of the plan: the same on all hosts of the job (law 1).
struct PlanTensor {
  TensorId id;  // equal to its position in Plan::tensors
  Operation operation{};
  ReduceOp reduce{};
  Dtype dtype{};
  Pattern pattern{};
  ClassId cls;
  float urgency = 0;  // [0, 1]
  std::uint64_t elements = 0;
  std::uint32_t slice_elements = 0;
  HostIndex root;  // broadcast: the host of the root rank
  Rank root_rank;  // broadcast: where the data is
  // The local ranks of some host are more than one, so contributions of 16-bit tensors are already float32 sums ("dtype
  // on the wire").
  bool wide_contributions = false;
  std::string name;  // for messages; not used to decide anything
};

struct Plan {
  std::uint32_t version = 0;
  std::vector<PlanTensor> tensors;    // only ever grows within a job
  std::vector<HostIndex> rank_hosts;  // the host of every rank: whose block of an allgather lies where. Needed only
                                      // where there is an allgather

  // FNV-1a over everything that shapes a tag or a sum; logged by every host (law 1).
  std::uint64_t hash() const;
};

}  // namespace tensorlane::protocol
