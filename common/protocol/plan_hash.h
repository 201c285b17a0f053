// The hash of a plan whose tensors come and go: those that stay are not looked at again.
#pragma once

#include <cstdint>

#include "common/base/hash.h"
#include "common/protocol/plan.h"

namespace tensorlane::protocol {

// FNV-1a over everything that shapes a tag or a sum; of the tensors, each of which says its place in the plan, the sum
// of their hashes counts, so that it does not matter in which order they came. One thread.
class PlanHash {
 public:
  // Of a plan without tensors: its rails and the hosts of its ranks, which never change within a job.
  explicit PlanHash(const Plan& plan);
  // A tensor comes, as the plan has it.
  void add(const PlanTensor& tensor);
  // A tensor goes that was added, as it was added.
  void remove(const PlanTensor& tensor);
  // Of the plan with the tensors that are there; of `plan`, its version, ordering and concurrent operations count.
  std::uint64_t value(const Plan& plan) const;

 private:
  Fnv1a job_;                  // its rails and hosts
  std::uint64_t tensors_ = 0;  // the sum of their hashes, modulo 2^64
};

}  // namespace tensorlane::protocol
