// Transports over ports of a network in memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/ports/port_metrics.h"
#include "harness.h"
#include "packet_network.h"

namespace tensorlane::conformance {

using PortMetricsList = std::vector<std::shared_ptr<ports::PortMetrics>>;

// Each transport that is made adds what its port tells to `metrics`, which outlives the kind.
TransportKind dpdk_kind(const std::string& name, bool v6, DataProtection level, const NetworkFaults& faults = {},
                        PortMetricsList* metrics = nullptr);

}  // namespace tensorlane::conformance
