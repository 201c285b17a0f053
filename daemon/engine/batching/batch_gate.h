// When a batch of a plan begins on a host: once all of its local ranks have submitted all of its members. In front of
// Admission, which knows batches only. The daemon and the simulator run this code (law 6).
//
// A batch's k-th operation moves the k-th operation of every member, so a program that batches are planned for submits
// all tensors that it has registered together equally often. A rank that waits for a member and never submits another
// one of its batch waits for ever as far as this class knows; its host reports it, as any rank that keeps others
// waiting.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// For one job on one host. One thread; allocates in grow() only, and a call takes constant time, or that of the members
// of one batch.
class BatchGate {
 public:
  struct Member {
    TensorId tensor;
    std::uint64_t offset = 0, elements = 0;  // of the batch, in elements
  };
  // What a submission has made complete.
  struct Step {
    bool of_rank = false;  // this rank's part of the batch
    bool of_host = false;  // the host's: the batch begins
  };

  // `ranks`: of this host, at most.
  explicit BatchGate(std::uint32_t ranks) : ranks_(ranks) {}

  // The plan in force from now on, of which check_batches() approves: `added` is new. It lies behind the last tensor,
  // or where tensors were vacated. `ranks` of this host take part in it, known by their places among them.
  void grow(const protocol::Plan& plan, protocol::TensorRange added, std::uint32_t ranks);
  // As grow(), of a plan that was appended to; an older one, which others have overtaken, adds nothing.
  void grow(const protocol::Plan& plan) {
    const auto known = static_cast<std::uint32_t>(index_.size());
    if (plan.tensors.size() < known) return;
    grow(plan, {known, static_cast<std::uint32_t>(plan.tensors.size()) - known}, ranks_);
  }
  // Batches are gone, with all of their members. Nothing of them is under way.
  void vacate(protocol::TensorRange range);

  // In the order in which they lie in the batch. None of what is no batch, has not come to be here yet, or has gone
  // already: a peer may speak of it.
  std::span<const Member> members(TensorId batch) const;

  // A rank, by its place, has submitted its part of the next operation of a member. Each rank does that once for
  // each member, then the batch must be completed.
  Step submitted(std::uint32_t rank, TensorId member);
  // The batch's operation is over, and with it that of all of its members.
  void completed(TensorId batch);

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Batch {
    std::uint32_t count = 0;  // of members; 0: the entry is free
    std::uint32_t ranks = 0;
    std::uint32_t left = 0;  // submissions, of all ranks
    std::vector<Member> members;
  };
  std::uint32_t new_batch();
  Batch& batch_of(TensorId batch) { return batches_[index_[batch.value]]; }
  const Batch& batch_of(TensorId batch) const { return batches_[index_[batch.value]]; }

  std::uint32_t ranks_;
  std::vector<std::uint32_t> index_;  // by tensor: of its batch, or its own, in batches_; kNone for other tensors
  std::vector<Batch> batches_;
  std::vector<std::uint32_t> free_;  // of batches_
  std::vector<std::uint32_t> left_;  // by batch and rank: members that it has not submitted
};

}  // namespace tensorlane::engine
