// How urgent a job's leader plans the operations whose programs do not say it, and what is said about that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "common/protocol/session.h"
#include "daemon/planning/planned_job.h"

namespace tensorlane::planning {

// One thread, control's. `fabric` outlives it.
class UrgencyChoices {
 public:
  explicit UrgencyChoices(const fabric::Fabric& fabric) : fabric_(fabric) {}

  // What the first rule of the fabric file that fits says of a tensor with kUnsaidUrgency; the tensor's own where none
  // does.
  float choose(const PlannedJob& job, const protocol::TensorBody& body);

  // Jobs of this name have ended: what was chosen for them is not reported any more.
  void forget(const std::string& name) { forget_name(chosen_, name); }

  // What was chosen here as a leader, one entry for each job and rule that fitted, with the last such tensor:
  //   [{"job", "job_id", "rule": "fabric.yaml:12", "operation", "urgency", "tensors", "last"}]
  // The rule is "default" where the file has none of its own, and "none" where no rule fitted.
  nlohmann::json choices() const;

 private:
  struct Chosen {
    float urgency = 0;
    std::uint64_t tensors = 0;
    std::string last;
  };
  // So many are kept and reported of one job; choices beyond it are made all the same.
  static constexpr std::size_t kMost = 256;

  std::string rule_name(const fabric::UrgencyRule* rule) const;

  const fabric::Fabric& fabric_;
  // By job, and there by place of the rule and operation.
  std::map<PlannedJob, std::map<std::pair<std::string, Operation>, Chosen>> chosen_;
};

}  // namespace tensorlane::planning
