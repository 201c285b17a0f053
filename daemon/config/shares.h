// How the users of a daemon share what it has only so much of (law 19).
#pragma once

#include "common/base/ledger.h"
#include "daemon/config/config.h"

namespace tensorlane::config {

// Completes the rules of a limit, of which `what`, `key`, `fix` and `total` are given: `users_guaranteed` percent of
// the total are divided evenly among the `users` of daemon.yaml and kept for each of them; nobody gets more than the
// rest and a part of his own. Root and the daemon's own user, who have to be able to see what is wrong, always have a
// little.
Ledger::Rules shared(const DaemonConfig& config, Ledger::Rules rules);

}  // namespace tensorlane::config
