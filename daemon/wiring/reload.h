// What a daemon can take over from a changed daemon.yaml while it runs (SIGHUP), and what it cannot.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"

namespace tensorlane::wiring {

// Names of keys, in the order of the alphabet; "fabric" also where the fabric file says something else now.
struct Changes {
  std::vector<std::string> taken;    // in force from now on
  std::vector<std::string> restart;  // when the daemon is started again
};

// What `next` says otherwise than `running`, the configuration that the daemon has.
Changes compare(const config::DaemonConfig& running, const config::DaemonConfig& next);

// Takes over from `next` what can be taken over into `running`.
void take_over(const config::DaemonConfig& next, config::DaemonConfig* running);

// For the log: "log_level and users changed; metrics takes effect when the daemon is started again".
std::string text_of(const Changes& changes);

}  // namespace tensorlane::wiring
