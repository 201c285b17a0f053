// From a plan to the engine's tables.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/operation.h"

namespace tensorlane::engine {

// Parts of a table that nothing uses; neighbours never touch.
class Holes {
 public:
  // Where `count` entries in a row go in a table of `size`: into the smallest hole that has room, else to its end.
  std::uint32_t take(std::uint32_t count, std::size_t size);
  void give(const Range& range);
  std::uint32_t entries() const { return entries_; }

 private:
  using ByFirst = std::map<std::uint32_t, std::uint32_t>;  // first -> count
  ByFirst::iterator remove(ByFirst::iterator hole);

  ByFirst free_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_count_;  // the same: count, first
  std::uint32_t entries_ = 0;
};

struct PlanTables {
  std::vector<Tensor> tensors;
  std::vector<Slice> slices;
  std::vector<Link> links;  // of one tensor: ascending by peer
  std::vector<Source> sources;
  std::vector<SendItem> sends;
  std::vector<std::uint32_t> leaf_sources, result_sends;  // by link
  // What tensors that are gone have left behind.
  struct {
    Holes slices, links, sources, sends, leaf_sources, result_sends;
  } holes;
  std::uint32_t barriers = 0;
  std::uint32_t messages = 0;  // control messages that can wait at a time
};

// Whether the tensors already planned are in `plan` as they were. Error: kInvalidArgument (names the tensor).
Status check_known(const PlanTables& tables, const protocol::Plan& plan);

// Checks what `plan` has in the range `added` against `config`. Errors: kInvalidArgument (names the tensor and the
// value).
Status check_plan(const EngineConfig& config, const PlanTables& tables, const protocol::Plan& plan,
                  protocol::TensorRange added);

// Makes the tables of one tensor of a checked plan, where the tables say that it is vacant, or behind the last one.
// Operations go on from its base. Errors: kResourceExhausted; nothing changes then.
Status place_tensor(const EngineConfig& config, const protocol::Plan& plan, const protocol::PlanTensor& tensor,
                    PlanTables* tables);

// Its tables are free for others; what stays is the sequence of its last operation. The tensor is_idle().
void vacate_tensor(std::uint32_t tensor, PlanTables* tables);

// Whether neither this host nor a peer has begun an operation that is not complete.
bool is_idle(const PlanTables& tables, const Tensor& tensor);

// Staging pages that one slice of this tensor can need at most at this host, all contributions together.
std::uint64_t pages_of_largest_slice(const PlanTables& tables, const Tensor& tensor);

// The type of a contribution to a slice of `tensor`: my own data alone (`leaf`) or a sum.
inline Dtype wire_dtype(const Tensor& tensor, bool leaf) {
  return leaf ? tensor.leaf_dtype : tensor.partial_dtype;
}

}  // namespace tensorlane::engine
