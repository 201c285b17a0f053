#include "daemon/wiring/shares.h"

#include <sys/resource.h>

#include "common/base/available_memory.h"
#include "daemon/config/shares.h"

namespace tensorlane::wiring {
namespace {

// Logs, listeners, epoll instances, eventfds, devices, scrapes; and two sockets of the control plane for each host.
constexpr std::uint64_t kOwnDescriptors = 64;
constexpr std::uint64_t kDescriptorsOfHost = 2;

}  // namespace

std::shared_ptr<memory::MemoryBudget> memory_budget(const config::DaemonConfig& config) {
  (void)available_memory();  // which takes the descriptor that it needs, while there are some
  return std::make_shared<memory::MemoryBudget>(config::shared(config, memory::memory_rules(config.memory_limit)),
                                                config.memory_keep_free);
}

Ledger region_ledger(const config::DaemonConfig& config, std::uint32_t regions) {
  return Ledger(config::shared(config, {.what = "tensors",
                                        .key = "the table of tensors",
                                        .user_key = {},
                                        .fixed = true,
                                        .fix = "register fewer, larger tensors",
                                        .total = regions}));
}

Ledger::Rules descriptor_rules(const config::DaemonConfig& config) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::uint64_t own = kOwnDescriptors + config.max_pending + kDescriptorsOfHost * config.fabric.hosts.size();
  return config::shared(config, {.what = "descriptors",
                                 .key = "LimitNOFILE of the daemon",
                                 .user_key = {},
                                 .fix = "end other jobs",
                                 .total = limit.rlim_cur > own ? limit.rlim_cur - own : 1});
}

}  // namespace tensorlane::wiring
