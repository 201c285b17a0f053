// What a configuration asks of the host, tried without doing it: for --check-config.
#pragma once

#include <string>

#include "common/base/status.h"
#include "daemon/config/config.h"

namespace tensorlane::wiring {

// Whether this host has the addresses that daemon.yaml and the fabric file say it has, and the files can be written.
// Says nothing about ports that are in use, because the daemon may be running. Errors: of the first that is wrong.
Status try_out(const config::DaemonConfig& config);

// Of them, whether metrics could be served where the configuration says; ok where it says nothing.
Status try_metrics(const config::DaemonConfig& config);

// Why a check by root says less than it seems to: `service_user` is a user of this host and cannot read the secret key,
// because it belongs to root, who checks. Empty otherwise.
std::string key_warning(const config::DaemonConfig& config, const std::string& service_user);

}  // namespace tensorlane::wiring
