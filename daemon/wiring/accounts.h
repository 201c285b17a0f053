// What the users of a daemon share beside memory, and how (law 19).
#pragma once

#include "common/base/ledger.h"
#include "daemon/config/config.h"

namespace tensorlane::wiring {

// The descriptors that sessions, their memory and the flows of jobs may take: this process's limit of open files, less
// what the daemon itself needs. To be asked once the limit is what it will be.
Ledger::Rules descriptor_rules(const config::DaemonConfig& config);

}  // namespace tensorlane::wiring
