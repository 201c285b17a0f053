// What daemon.yaml and the fabric file mean for what the daemon tells of itself: metrics, spans, engine logs.
#pragma once

#include "daemon/config/config.h"
#include "daemon/host/config.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::wiring {

telemetry::ExporterConfig exporter_config(const config::DaemonConfig& config);

telemetry::SpanStoreConfig span_config(const config::DaemonConfig& config);

// Opens the engine logs of jobs in the folder `record` of daemon.yaml; none where it names no folder. `config` outlives
// what is returned.
host::ObserverMaker recorder_maker(const config::DaemonConfig& config);

}  // namespace tensorlane::wiring
