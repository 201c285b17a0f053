// Checker "protocol": an engine refuses a plan that would move or cut a tensor otherwise whose operations may run
// (law 1).
#pragma once

#include "simulator/checkers/findings.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// Offers plans with one tensor changed to an engine of its own.
void check_plans(const Scenario& scenario, Findings& findings);

}  // namespace tensorlane::simulator
