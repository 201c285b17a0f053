// What a job's leader plans for one tensor.
#pragma once

#include "common/protocol/plan.h"
#include "common/protocol/session.h"
#include "daemon/config/config.h"
#include "daemon/planning/pattern_choices.h"
#include "daemon/planning/urgency_choices.h"
#include "daemon/ports/job.h"

namespace tensorlane::planning {

// What is chosen where neither program nor configuration says it. One thread, control's. `config` outlives it.
struct Choices {
  explicit Choices(const config::DaemonConfig& config) : patterns(config), urgencies(config.fabric) {}

  void forget(const std::string& job) {
    patterns.forget(job);
    urgencies.forget(job);
  }

  PatternChoices patterns;
  UrgencyChoices urgencies;
};

// All that shapes the tags and sums of one tensor (law 1): class, slices and pattern. Runs on the job's leader, on
// control's thread. `body` has been checked where it was read.
protocol::PlanTensor plan_tensor(const config::DaemonConfig& config, Choices& choices, const protocol::TensorBody& body,
                                 const ports::JobSpec& job);

}  // namespace tensorlane::planning
