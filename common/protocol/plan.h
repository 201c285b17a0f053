// The plan: whatever shapes a tag or a sum, the same on all hosts of a job, versioned (law 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/world.h"

namespace tensorlane::protocol {

// Numbers are stable: hosts send them to each other.
enum class Pattern : std::uint8_t {
  kRing = 0,
  kParameterServer = 1,
  kHalvingDoubling = 2,
  kTree = 3,
  kWholeServer = 4
};
inline constexpr std::size_t kPatternCount = 5;

// As in daemon.yaml: "ring", "parameter_server", "halving_doubling", "tree", "whole_server".
const char* pattern_name(Pattern pattern);
// Nothing for any other name. "shuffle" (Caramel, section 2) is a parameter server whose servers are all the hosts,
// which is the only kind there is here.
std::optional<Pattern> pattern_from_name(std::string_view name);
// Whether a tensor may ask for it: not kWholeServer, which needs a plan that spreads tensors over servers, as only the
// planner makes it.
constexpr bool is_selectable(Pattern pattern) {
  return static_cast<std::size_t>(pattern) < kPatternCount && pattern != Pattern::kWholeServer;
}

// Which of a job's operations a host begins, and when (daemon/engine/ordering). Numbers are stable, too.
enum class Ordering : std::uint8_t {
  kTagged = 0,      // each when it is ready; its class and urgency say what travels first
  kFunnel = 1,      // one after the other, in the order of the plan
  kConcurrent = 2,  // in that order, so many at once
  kChained = 3,     // in that order, one after the other between the hosts, while others are summed and copied inside
  kCounters = 4,    // in that order, any number at once
  kNegotiated = 5,  // once it is ready on all hosts
};
inline constexpr std::size_t kOrderingCount = 6;

// As in daemon.yaml: "tagged", "funnel", "concurrent", "chained", "counters", "negotiated".
const char* ordering_name(Ordering ordering);
// Nothing for any other name.
std::optional<Ordering> ordering_from_name(std::string_view name);

inline constexpr std::uint32_t kNoBatch = 0xffffffff;

// One tensor of the plan: the same on all hosts of the job (law 1). What shapes a plan's hash, and is logged, is what
// plan_fields.h lists.
struct PlanTensor {
  TensorId id;  // equal to its position in Plan::tensors
  Operation operation{};
  ReduceOp reduce{};
  Dtype dtype{};
  Pattern pattern{};
  ClassId cls;
  float urgency = 0;  // [0, 1]
  std::uint64_t elements = 0;
  std::uint64_t row = 1;  // reduce-scatter: in elements; what is not cut (rank_block.h)
  std::uint32_t slice_elements = 0;
  HostIndex root;  // broadcast: the host of the root rank; push, pull: owner of the first shard; kWholeServer: of all
  Rank root_rank;  // broadcast: where the data is
  // The local ranks of some host are more than one, so contributions of 16-bit tensors are already float32 sums ("dtype
  // on the wire").
  bool fp32_contributions = false;
  std::uint32_t group = 0;  // tensors that were registered together have a number of their own, and an order (Ordering)
  // Small allreduces may travel together, as a tensor of the plan that nobody registers: their batch. Its members are
  // behind no slice of their own; what is said of the batch (pattern, class, urgency, slices) is said of all of them.
  std::uint32_t batch = kNoBatch;  // of a member: the id of its batch
  std::uint64_t batch_offset = 0;  // of a member: where it lies in the batch, in elements
  std::uint32_t members = 0;       // of a batch: how many
  std::uint64_t base = 0;  // of operations, at least as many as tensors had that were in this place before: sequences
                           // between hosts go on from there
  // Nothing is here any more: what was registered has been unregistered, and another tensor may come to be here.
  bool vacant = false;
  std::string name;  // for messages; not used to decide anything
  // The ranks that it is registered by, and its operations are among: none, all of the job. `root` and `root_rank` are
  // counted in it.
  SharedWorld world;

  std::uint64_t bytes() const { return elements * dtype_size(dtype); }
  bool is_batch() const { return members > 0; }
  bool in_batch() const { return batch != kNoBatch; }
  // The tensor whose operations move this one: its batch, or itself.
  TensorId operation_id() const { return in_batch() ? TensorId(batch) : id; }
};

// A contiguous part of Plan::tensors.
struct TensorRange {
  std::uint32_t first = 0, count = 0;
  std::uint32_t end() const { return first + count; }
  bool contains(TensorId tensor) const { return tensor.value >= first && tensor.value < end(); }
};

struct Plan {
  std::uint32_t version = 0;
  std::uint8_t rails = 1;                 // 1 to kMaxRails: which slice travels where (law 12)
  Ordering ordering = Ordering::kTagged;  // these two never change within a job
  std::uint32_t concurrent = 1;           // operations at once, for kConcurrent
  std::vector<PlanTensor> tensors;        // never shrinks within a job: see vacate()
  std::vector<HostIndex> rank_hosts;      // the host of every rank: whose block of an allgather or reduce-scatter lies
                                          // where. Needed only where there is one

  // What a plan of the first `known` tensors lacks: the tensors that follow; everything else as it is here.
  Plan since(std::size_t known) const;
  // With these tensors only.
  Plan part(TensorRange range) const;
  // Whether tensors may come to be in this range: it begins inside the plan or right behind it, and what it covers of
  // the plan is vacant.
  bool has_room(TensorRange range) const;
  // Where the next `count` tensors go: the first vacant places in a row that are enough, else the end of the plan, with
  // what is vacant there.
  TensorRange room_for(std::uint32_t count) const;
  // The tensors of a range that has_room(); the plan grows where the range goes beyond it.
  void place(TensorRange range, std::vector<PlanTensor> placed);
  // What is in the range is gone. The range lies in the plan.
  void vacate(TensorRange range);
  // Of everything that shapes a tag or a sum (plan_hash.h), vacant places left out; logged by every host (law 1).
  std::uint64_t hash() const;
};

// Whether the tensors of a range, which are what a plan adds to the one before, are in their batches as they must be:
// members and batch were registered together, are allreduces of one kind, and the members fill the batch without a gap.
// Errors: kInvalidArgument, with the tensor and what is wrong.
Status check_batches(const Plan& plan, TensorRange added);

}  // namespace tensorlane::protocol
