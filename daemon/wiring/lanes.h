// What each lane of the daemon has for itself.
#pragma once

#include <memory>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/host/config.h"
#include "daemon/memory/region_table.h"
#include "daemon/ports/all_lanes.h"
#include "daemon/ports/executor.h"
#include "daemon/ports/reducer.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::wiring {

class LaneParts {
 public:
  static constexpr std::uint32_t kMaxRegions = 1 << 19;  // of each lane

  // For as many lanes as `config` says. `reducer` and `spans` outlive it.
  LaneParts(const config::DaemonConfig& config, ports::Reducer& reducer, telemetry::SpanStore& spans);
  // Makes the executors. Errors: those of reduce::make_executor.
  Status start(const config::DaemonConfig& config);

  // What all lanes share, with what each has for itself. After start().
  std::vector<host::HostPorts> ports(const host::HostPorts& shared);
  ports::AllLanes metrics() const;

 private:
  struct Part {
    memory::RegionTable regions{kMaxRegions};
    std::unique_ptr<ports::Executor> executor;
    ports::LaneMetrics metrics;
  };
  ports::Reducer& reducer_;
  telemetry::SpanStore& spans_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace tensorlane::wiring
