#include "daemon/wiring/lanes.h"

#include "daemon/reduce/workers.h"
#include "daemon/wiring/lane_config.h"

namespace tensorlane::wiring {

LaneParts::LaneParts(const config::DaemonConfig& config, ports::Reducer& reducer, telemetry::SpanStore& spans)
    : reducer_(reducer), spans_(spans) {
  for (std::uint32_t lane = 0; lane < config.lanes; ++lane) parts_.push_back(std::make_unique<Part>());
}

Status LaneParts::start(const config::DaemonConfig& config) {
  for (std::size_t lane = 0; lane < parts_.size(); ++lane) {
    const std::size_t workers = config.workers / config.lanes + (lane < config.workers % config.lanes ? 1 : 0);
    TL_ASSIGN_OR_RETURN(parts_[lane]->executor, reduce::make_executor(reducer_, workers, spin(config)));
  }
  return {};
}

std::vector<host::HostPorts> LaneParts::ports(const host::HostPorts& shared) {
  std::vector<host::HostPorts> all(parts_.size(), shared);
  for (std::size_t lane = 0; lane < parts_.size(); ++lane) {
    all[lane].memory = &parts_[lane]->regions;
    all[lane].executor = parts_[lane]->executor.get();
    all[lane].metrics = &parts_[lane]->metrics;
    all[lane].timeline = &spans_.lane(lane);
  }
  return all;
}

ports::AllLanes LaneParts::metrics() const {
  std::vector<const ports::LaneMetrics*> all;
  for (const auto& part : parts_) all.push_back(&part->metrics);
  return ports::AllLanes(all);
}

}  // namespace tensorlane::wiring
