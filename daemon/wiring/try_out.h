// What a configuration asks of the host, tried without doing it: for --check-config.
#pragma once

#include "common/base/status.h"
#include "daemon/config/config.h"

namespace tensorlane::wiring {

// Whether this host has the addresses that daemon.yaml and the fabric file say it has, and the files can be written.
// Says nothing about ports that are in use, because the daemon may be running. Errors: of the first that is wrong.
Status try_out(const config::DaemonConfig& config);

}  // namespace tensorlane::wiring
