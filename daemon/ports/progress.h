// How far the flows of a job have come, as the lane of one host tells control (law 21).
#pragma once

#include <vector>

#include "common/base/units.h"
#include "daemon/ports/telemetry.h"
#include "daemon/ports/transport.h"

namespace tensorlane::ports {

struct FlowState {
  HostIndex peer;
  ClassId cls;
  RailIndex rail;
  FlowProgress progress;
  bool held = false;  // the engine has something for the flow that it was not asked for yet
};

// Payload that all jobs of this host have sent and received by one NIC since the daemon began, by metrics_slot().
struct PortBytes {
  std::array<std::uint64_t, kMaxDataClasses + 1> sent{}, received{};

  PortBytes& operator+=(const PortBytes& more) {
    for (std::size_t c = 0; c < sent.size(); ++c) {
      sent[c] += more.sent[c];
      received[c] += more.received[c];
    }
    return *this;
  }
};

struct LaneProgress {
  Time at;                       // of the lane's clock
  std::vector<FlowState> flows;  // of the job; none in a job of one host
  std::vector<PortBytes> ports;  // by rail
};

}  // namespace tensorlane::ports
