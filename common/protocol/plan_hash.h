// The hash of a plan that grows: what it had before is not looked at again.
#pragma once

#include "common/base/hash.h"
#include "common/protocol/plan.h"

namespace tensorlane::protocol {

// FNV-1a over everything that shapes a tag or a sum. One thread.
class PlanHash {
 public:
  // Of a plan without tensors: its rails and the hosts of its ranks, which never change within a job.
  explicit PlanHash(const Plan& plan);
  // The next tensor, as the plan has it.
  void add(const PlanTensor& tensor);
  // Of the plan with the tensors so far; of `plan`, its version, ordering and concurrent operations count.
  std::uint64_t value(const Plan& plan) const;

 private:
  Fnv1a hash_;
};

}  // namespace tensorlane::protocol
