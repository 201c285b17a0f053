// What all hosts of a job must agree on (law 22), of daemon.yaml and of the fabric file.
#pragma once

#include <map>
#include <string>

#include "daemon/config/config.h"

namespace tensorlane::config {

// Each key that must be alike, as people write it ("daemon.yaml on_lost_flow", "fabric.yaml class 1"), and its value
// here. A key that counts only for some hosts, such as those of RDMA, is there only where it counts.
std::map<std::string, std::string> must_be_alike(const DaemonConfig& config);

}  // namespace tensorlane::config
