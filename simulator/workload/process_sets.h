// Process sets of a scenario: registrations by some of a job's ranks.
#pragma once

#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// In part of the seeds some registrations of the plan are of fewer ranks, by a random stream of their own. Once tensors
// have their groups, and before there are batches. No tensor becomes larger.
void random_sets(Scenario& scenario);

}  // namespace tensorlane::simulator
