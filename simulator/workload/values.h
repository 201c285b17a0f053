// What every rank contributes and what must come out, computed element by element from the plan alone: nothing of the
// engine's arithmetic, schedules or tables is used here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "simulator/workload/scenario.h"
#include "simulator/workload/world.h"

namespace tensorlane::simulator {

// One host gives another its sum so far, which adds it to its own.
struct Passing {
  HostIndex from, to;
};

class Values {
 public:
  // `scenario` does not change any more.
  explicit Values(const Scenario& scenario) : scenario_(scenario), worlds_(scenario.worlds()) {}

  const TensorWorld& world(const protocol::PlanTensor& tensor) const { return worlds_[tensor.id.value]; }

  // Ranks are the job's; they are among those of the tensor.

  // Fills the rank's buffer (tensor's dtype).
  void contribute(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence, std::span<std::byte> buffer) const;
  // Whether element `index` comes from the rank, alone or as a term of a sum.
  bool brings(Rank rank, const protocol::PlanTensor& tensor, std::uint64_t index) const;
  // The result with every rank; of what stays with owners, the sums, which only they have.
  std::vector<std::byte> expected(const protocol::PlanTensor& tensor, Sequence sequence) const;
  // Of an operation whose parts go from rank to rank: all that the rank's buffer holds after it.
  std::vector<std::byte> exchanged(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence) const;
  // The rank that has element `index` of a sum that stays with owners.
  Rank owner(const protocol::PlanTensor& tensor, std::uint64_t index) const;

 private:
  // From here on ranks and hosts are counted in the tensor's world.
  Rank number_of(Rank rank, const protocol::PlanTensor& tensor) const;
  std::uint64_t bits(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index) const;
  // What a rank contributes: of tensors of numbers with a point, and of integers.
  double element(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index) const;
  std::int64_t integer(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index) const;
  // What the owner has of an element that was passed on this way.
  double sum(const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner,
             std::span<const Passing> way) const;
  std::int64_t integer_sum(const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner,
                           std::span<const Passing> way) const;
  void store_exchanged(Rank rank, const protocol::PlanTensor& tensor, Sequence sequence, std::uint64_t index,
                       std::span<std::byte> buffer) const;
  Rank gathered_from(const protocol::PlanTensor& tensor, std::uint64_t index) const;
  Rank first_rank(const protocol::PlanTensor& tensor, HostIndex host) const;

  const Scenario& scenario_;
  std::vector<TensorWorld> worlds_;  // by tensor
};

// Ranks and hosts of all that follows are counted in the tensor's world.

// Elements of a rank's buffer of a tensor.
std::uint64_t buffer_elements(const protocol::PlanTensor& tensor, std::uint32_t world_size, Rank rank);
// Of an operation whose parts go from rank to rank: whose, and for whom, element `index` of a rank's buffer is, and
// which of that part's elements.
struct Exchanged {
  Rank from, to;
  std::uint64_t index = 0;
  bool given = false;  // the rank has it before the operation
};
Exchanged exchanged_at(const protocol::PlanTensor& tensor, std::uint32_t world_size, Rank rank, std::uint64_t index);
// Bytes that cross between hosts in one such operation.
std::uint64_t exchanged_bytes(const protocol::PlanTensor& tensor, std::span<const HostIndex> rank_hosts);
// Allreduce, push, reduce-scatter and reduce.
bool sums(const protocol::PlanTensor& tensor);
// The host that owns the shard which element `index` of such a tensor, or of a pull, belongs to.
// `rank_hosts`: of every rank; needed for a reduce-scatter. `shard_end`, unless null: the element behind that shard.
HostIndex owner(const protocol::PlanTensor& tensor, std::span<const HostIndex> rank_hosts, std::uint16_t hosts,
                std::uint64_t index, std::uint64_t* shard_end = nullptr);
// A piece of a tensor that moves by itself, and who owns it.
struct PlannedSlice {
  std::uint64_t offset = 0, elements = 0;
  HostIndex owner;
};
// The slices of such a tensor, or of a barrier, in order of their numbers; of other operations none.
std::vector<PlannedSlice> planned_slices(const protocol::PlanTensor& tensor, std::span<const HostIndex> rank_hosts,
                                         std::uint16_t hosts);
// Bytes of an element of a contribution: of one host's own data (`leaf`), or of a sum of several.
std::size_t contribution_element_bytes(const protocol::PlanTensor& tensor, bool leaf);
// All that is passed on until the owner has the sum, in an order in which it may happen: the steps of the textbooks,
// not the engine's routes.
std::vector<Passing> passings(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner);
// How many others' sums any host adds at most, whoever owns them.
std::uint16_t most_sources(protocol::Pattern pattern, std::uint16_t hosts);
// Bytes of contributions that cross between hosts during one operation, all hosts together.
std::uint64_t contributed_bytes(const protocol::PlanTensor& tensor, std::span<const HostIndex> rank_hosts,
                                std::uint16_t hosts);
// Whether the engine wants float32 memory beside the buffer: for float32 contributions, and for a ring's partial sums
// of 16-bit elements.
bool needs_fp32_scratch(const protocol::PlanTensor& tensor, std::uint16_t hosts);

}  // namespace tensorlane::simulator
