// Inside the linter: rules about code points, queues and PFC.
#pragma once

#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// Rules L1 and L13: code points.
void check_code_points(const Device& device, const Port& port, findings::Report& report);
// Rule L2: one number for a lossless class.
void check_identity(const Device& device, const Port& port, findings::Report& report);
// Rules L3 and L12: which priorities are lossless.
void check_pfc(const Device& device, const Port& port, findings::Report& report);
// Rule L4: order of service.
void check_order(const Device& device, const Port& port, findings::Report& report);
// Rule L5: ECN.
void check_ecn(const Device& device, const Port& port, findings::Report& report);

}  // namespace tensorlane::lint
