// How the users of a daemon share its memory and its table of tensors.
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

}  // namespace tensorlane::wiring
