#include "daemon/wiring/session_config.h"

#include <systemd/sd-daemon.h>

#include <utility>

#include "daemon/config/shares.h"

namespace tensorlane::wiring {

session::SessionConfig session_config(const config::DaemonConfig& config, std::shared_ptr<Ledger> descriptors) {
  session::SessionConfig session;
  session.socket_path = config.socket;
  session.allowed_uids = config.users;
  session.max_sessions = config.max_sessions;
  session.max_pending = config.max_pending;
  session.max_tensors = config.max_tensors;
  session.descriptors = std::move(descriptors);
  session.share = [&config](Ledger::Rules rules) { return config::shared(config, std::move(rules)); };
  session.arena_per_session = config.arena_limit;
  if (sd_listen_fds(0) >= 1) session.listen_fd = SD_LISTEN_FDS_START;
  return session;
}

}  // namespace tensorlane::wiring
