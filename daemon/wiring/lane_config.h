// What daemon.yaml and the fabric file mean for the lane.
#pragma once

#include "common/base/units.h"
#include "common/fabric/fabric.h"
#include "daemon/config/config.h"
#include "daemon/lane/lane.h"

namespace tensorlane::wiring {

// How much of a class may be in flight on a rail of this host (law 8).
Bytes window(const config::DaemonConfig& config, const fabric::TrafficClass& cls, RailIndex rail);

// How long a thread with nothing to do polls before it sleeps.
Duration spin(const config::DaemonConfig& config);

lane::LaneConfig lane_config(const config::DaemonConfig& config);

}  // namespace tensorlane::wiring
