// How the users of a daemon share its memory, its table of tensors and its descriptors (law 19).
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/ledger.h"
#include "daemon/config/config.h"
#include "daemon/memory/budget.h"

namespace tensorlane::wiring {

std::shared_ptr<memory::MemoryBudget> memory_budget(const config::DaemonConfig& config);

// Of a lane's table of `regions`: an entry for each tensor, another one where it is summed in float32 scratch.
Ledger region_ledger(const config::DaemonConfig& config, std::uint32_t regions);

// The descriptors that sessions, their memory and the flows of jobs may take: this process's limit of open files, less
// what the daemon itself needs. To be asked once the limit is what it will be.
Ledger::Rules descriptor_rules(const config::DaemonConfig& config);

}  // namespace tensorlane::wiring
