// What the server of sessions is told: who may come, and what each may have.
#pragma once

#include <memory>

#include "common/base/ledger.h"
#include "daemon/config/config.h"
#include "daemon/session/server.h"

namespace tensorlane::wiring {

// `config` outlives the server.
session::SessionConfig session_config(const config::DaemonConfig& config, std::shared_ptr<Ledger> descriptors);

}  // namespace tensorlane::wiring
