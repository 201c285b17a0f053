// From blame to what people read: which changes happen at one place, what that looks like, and where to look.
#pragma once

#include <vector>

#include "monitor/verify/blame.h"
#include "monitor/verify/verdict.h"

namespace tensorlane::verify {

// One finding for each place, that which explains most first.
std::vector<Finding> make_findings(const Observations& seen, const std::vector<Blame>& blame, const Topology& topology);

// Adds one for each port at which a class did not overtake another one.
void add_queue_findings(const Observations& seen, const std::vector<Overtaking>& overtaking, const Topology& topology,
                        std::vector<Finding>& findings);

}  // namespace tensorlane::verify
