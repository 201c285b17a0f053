// Metrics of ports that the daemon drives itself.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

#include "daemon/telemetry/metrics.h"

namespace tensorlane::telemetry {

// Of config.ports, by rail: as many families whether there are ports or none, as many series as the ports have classes
// and reasons to drop packets. Any thread.
std::vector<prometheus::MetricFamily> port_families(const ExporterConfig& config);

}  // namespace tensorlane::telemetry
