#include "daemon/wiring/accounts.h"

#include <sys/resource.h>

#include <algorithm>

#include "daemon/config/shares.h"

namespace tensorlane::wiring {
namespace {

// Logs, listeners, epoll instances, eventfds, devices, scrapes; and two sockets of the control plane for each host.
constexpr std::uint64_t kOwn = 64;
constexpr std::uint64_t kPerHost = 2;

}  // namespace

Ledger::Rules descriptor_rules(const config::DaemonConfig& config) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::uint64_t own = kOwn + config.max_pending + kPerHost * config.fabric.hosts.size();
  Ledger::Rules rules;
  rules.what = "descriptors";
  rules.key = "LimitNOFILE of the daemon";
  rules.fix = "end other jobs";
  rules.total = limit.rlim_cur > own ? limit.rlim_cur - own : 1;
  return config::shared(config, std::move(rules));
}

}  // namespace tensorlane::wiring
