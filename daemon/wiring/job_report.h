// What this host knows of a job, as counts that only grow: whoever asks twice has what happened in between. For
// `tensorlane explain`, which compares hosts; their clocks do not matter, because every time is a duration.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/config/config.h"
#include "daemon/ports/all_lanes.h"
#include "daemon/ports/question.h"
#include "daemon/telemetry/connections.h"

namespace tensorlane::wiring {

// Control's thread. What it is made from outlives it.
class JobReport {
 public:
  // Connections that are described: of each peer the most urgent class first, then by class, and of a class those that
  // have carried most.
  static constexpr std::size_t kMostConnections = 64;
  // What the kernel says of all of the host's connections serves every asker within this time.
  static constexpr Duration kSocketsLast = milliseconds(100);

  struct Parts {
    const config::DaemonConfig& config;
    ports::AllLanes metrics;
  };
  explicit JobReport(Parts parts) : parts_(parts) {}

  // The report as JSON; docs/explain.md lists what is in it. Error: kNotFound, of a job that is not here.
  Result<nlohmann::json> read(JobId job) const;

 private:
  nlohmann::json classes(const ports::JobMetrics& job, const ports::LaneMetrics& all) const;
  void add_connections(JobId job, const ports::LaneMetrics& all, nlohmann::json* report) const;
  nlohmann::json rails(const ports::LaneMetrics& all) const;

  // By their ends, as FlowReport::path has them.
  using Sockets = std::map<std::string, telemetry::TcpConnection>;
  const Result<Sockets>& read_sockets() const;

  const Parts parts_;
  mutable std::optional<Result<Sockets>> sockets_;
  mutable std::int64_t sockets_read_ns_ = 0;  // of the monotonic clock
};

// Answers "job", whose args name one as {"job_id": 42}: to those who may know of it.
ports::Answerer answerer(const JobReport& report);

}  // namespace tensorlane::wiring
