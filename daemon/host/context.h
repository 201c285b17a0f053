// What jobs and their rails use of the host that carries them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/log_share.h"
#include "common/base/units.h"
#include "daemon/host/config.h"
#include "daemon/ports/job.h"
#include "daemon/ports/memory.h"
#include "daemon/ports/telemetry.h"
#include "daemon/ports/transport.h"

namespace tensorlane::host {

// Outlives the jobs.
struct Context {
  const HostConfig* config = nullptr;
  ports::Memory* memory = nullptr;
  ports::LaneMetrics* metrics = nullptr;
  ports::Timeline* timeline = nullptr;
  std::size_t lane = 0;                       // this one
  std::vector<ports::Transport*> transports;  // by rail; null: another lane's
  ports::LaneListener* listener = nullptr;
  Ledger* descriptors = nullptr;  // null: nobody counts
  LogShare* log_share = nullptr;  // what the log may say of each user's jobs
  const std::function<void(const std::string&)>* log = nullptr;
  std::function<Time()> clock;
  Time now;  // of the host's turn
  // Of the rail whose sends are under way: a class less urgent than the one that sends has something to send, too.
  bool bulk_waits = false;
};

// How often a job says how far it has come: as often as control sends heartbeats.
inline Duration report_period(const ports::JobSpec& spec) {
  return Duration(spec.detection.value / 8);
}

}  // namespace tensorlane::host
