#include "daemon/wiring/shares.h"

#include "daemon/config/shares.h"

namespace tensorlane::wiring {

std::shared_ptr<memory::MemoryBudget> memory_budget(const config::DaemonConfig& config) {
  return std::make_shared<memory::MemoryBudget>(config::shared(config, memory::memory_rules(config.memory_limit)),
                                                config.memory_keep_free);
}

Ledger region_ledger(const config::DaemonConfig& config, std::uint32_t regions) {
  return Ledger(config::shared(config, {.what = "tensors",
                                        .key = "the table of tensors",
                                        .user_key = {},
                                        .fix = "register fewer, larger tensors",
                                        .total = regions}));
}

}  // namespace tensorlane::wiring
