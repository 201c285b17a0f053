// fabric.yaml as the search for deadlocks sees it, and what it found as findings.
#pragma once

#include <optional>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "switch-config/deadlock/check.h"
#include "switch-config/deadlock/network.h"
#include "switch-config/findings/findings.h"

namespace tensorlane::deadlock {

// Levels are the roles of switches where all have one, else the distance from the nearest host. `routing` overrides the
// file's. InvalidArgument where a route or flooding VLAN of the file names what is not there or not linked.
Result<Network> network_of(const fabric::Fabric& fabric, std::optional<Routing> routing);

// One finding of rule L11 for each cycle, bounce and lossless class: the same routes carry all of them. None where no
// class is lossless.
findings::Report findings_of(const Report& report, const fabric::ClassTable& classes);

}  // namespace tensorlane::deadlock
