// What the daemon counts beside its lanes, for metrics.
#pragma once

#include <vector>

#include "daemon/control/control.h"
#include "daemon/memory/arena.h"
#include "daemon/session/server.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/timeline.h"

namespace tensorlane::wiring {

// All that they are of outlives what is returned. Any thread reads it.
std::vector<telemetry::ExtraCounter> daemon_counters(const control::Control& control,
                                                     const session::SessionServer& sessions,
                                                     const telemetry::TimelineRecorder& timeline,
                                                     const memory::ArenaPool& arenas,
                                                     const memory::MemoryBudget& memory,
                                                     const config::DaemonConfig& config);
// What each user has of what all share.
std::vector<telemetry::ExtraFamily> user_accounts(const session::SessionServer& sessions);

}  // namespace tensorlane::wiring
