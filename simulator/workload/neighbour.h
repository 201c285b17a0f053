// A second job for a scenario: small, of another user, on the same machines.
#pragma once

#include "simulator/clock/random.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// Whatever happens to the scenario's own job, this one goes on, unless its machines fail. Call it last: what is the
// machines' is as the scenario says by then, but for the connections that are reset, of which some become this job's.
// Says of both whether their ranks leave in the end.
void add_neighbour(Scenario& scenario);

// Perhaps a registration of the scenario's own job leaves its plan.
void random_shrink(Scenario& scenario, Random& random);

}  // namespace tensorlane::simulator
