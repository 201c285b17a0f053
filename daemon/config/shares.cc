#include "daemon/config/shares.h"

#include <unistd.h>

#include <algorithm>
#include <set>

namespace tensorlane::config {

Ledger::Rules shared(const DaemonConfig& config, Ledger::Rules rules) {
  const std::set<std::uint32_t> users(config.users.begin(), config.users.end());
  const std::uint64_t little = std::min<std::uint64_t>(rules.total / 8, 8), rest = rules.total - 2 * little;
  const std::uint64_t divided = rest / 100 * config.users_guaranteed + rest % 100 * config.users_guaranteed / 100;
  const std::uint64_t each = users.empty() ? 0 : divided / users.size();
  for (const std::uint32_t user : users) rules.kept[user] = each;
  for (const std::uint32_t user : {std::uint32_t{0}, std::uint32_t{geteuid()}})
    rules.kept[user] = std::max(rules.kept[user], little);
  rules.kept_key = "users_guaranteed";
  rules.user_key = rules.key + " for one user";
  // With too many users to keep something for each, still nobody gets everything.
  if (each == 0 && users.size() > 1) rules.per_user = std::max<std::uint64_t>(rules.total - divided, 1);
  return rules;
}

}  // namespace tensorlane::config
