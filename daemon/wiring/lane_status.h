// The part of the status that says what is in force on this host, and what the lane did.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/config/config.h"
#include "daemon/planning/plan_tensor.h"
#include "daemon/ports/all_lanes.h"
#include "daemon/telemetry/span_files.h"
#include "daemon/telemetry/timeline.h"
#include "daemon/wiring/transports.h"

namespace tensorlane::wiring {

// Control's thread. What it is made from outlives it.
class LaneStatus {
 public:
  struct Parts {
    const config::DaemonConfig& config;
    ports::AllLanes metrics;
    const telemetry::TimelineRecorder& timeline;
    const telemetry::SpanFiles& span_files;
    const planning::Choices& choices;
    const std::vector<RailTransport>& rails;
    std::function<Bytes()> batch_limit;            // how long a batch is at most; 0: there are none
    std::function<std::string()> metrics_address;  // empty: no metrics are served
  };
  explicit LaneStatus(Parts parts) : parts_(std::move(parts)) {}

  // {"transports": ..., "lane": ...}, as `tensorlane status --json` shows them.
  nlohmann::json read() const;

 private:
  using Metrics = ports::LaneMetrics;
  nlohmann::json saved_spans() const;
  nlohmann::json job_status(const Metrics& metrics) const;
  nlohmann::json path_status(const Metrics& metrics) const;  // how the flows to each peer go, and why
  nlohmann::json rail_status(const Metrics& metrics) const;  // what each NIC is used as, and what it carried
  nlohmann::json port_status(const ports::PortMetrics& port) const;
  std::string carrier(
      const Metrics& metrics) const;  // the transports that carry the payload: "tcp" where there was nothing to choose
  const std::string& class_name(ClassId cls) const;

  const Parts parts_;
};

}  // namespace tensorlane::wiring
