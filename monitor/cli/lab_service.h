// The ports of a lab as `tensorlane-switch render --target linux` configures them: shapers and guarantees of
// switch-config/policy, instead of the two sets of queues of lab_plan.h.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "monitor/cli/lab_plan.h"

namespace tensorlane::cli {

// The shell script of each node's ports, in the order of plan.nodes; it replaces whatever queues are there. Without
// `red`, for kernels that have no sch_red, classes mark no ECN. Errors are those of switches::devices_of() and
// render_linux(): what the policy refuses of the fabric file. Pure.
Result<std::vector<std::string>> service_scripts(const fabric::Fabric& fabric, const LabPlan& plan, bool red);

}  // namespace tensorlane::cli
