#include "daemon/wiring/lane_config.h"

#include <algorithm>
#include <optional>
#include <thread>

namespace tensorlane::wiring {
namespace {

// Control frames go before everything, so a job of many small tensors must not fill a link with them (law 10).
RateLimit control_limit(const config::DaemonConfig& config, RailIndex rail) {
  const std::optional<BitsPerSecond> link = config.fabric.link_speed(config.self(), rail);
  if (!config.control_rate && !link) return {};
  const BitsPerSecond rate =
      config.control_rate ? *config.control_rate : std::max(BitsPerSecond(link->value / 20), BitsPerSecond(1'000'000));
  return {rate, std::clamp(Bytes(bytes_per_second(rate) / 50), kib(16), kMaxBurst)};
}

}  // namespace

Bytes window(const config::DaemonConfig& config, const fabric::TrafficClass& cls, RailIndex rail) {
  return fabric::window(cls, config.fabric.link_speed(config.self(), rail));
}

lane::LaneConfig lane_config(const config::DaemonConfig& config) {
  lane::LaneConfig lane;
  lane.classes = config.data_classes();
  for (std::uint8_t r = 0; r < config.self().rails(); ++r) {
    host::RailConfig& rail = lane.rails.emplace_back();
    rail.control_limit = control_limit(config, RailIndex(r));
    rail.lane = r % config.lanes;
    for (std::size_t c = 0; c < config.data_classes(); ++c)
      rail.windows.push_back(window(config, config.fabric.classes.data[c], RailIndex(r)));
  }
  lane.single_queue = !config.priorities;
  lane.tunes = config.search_thresholds && config.priorities;
  lane.observes = config.observe_order && config.priorities;
  lane.thresholds = config.fabric.classes.thresholds;
  if (config.priorities) lane.job_limits = config.job_limits;
  lane.staging = config.staging;
  lane.late_after = config.late_after;
  lane.resume_flows = config.on_lost_flow == config::DaemonConfig::OnLostFlow::kResume;
  lane.cpu = config.cpu;
  lane.spin = spin(config);
  return lane;
}

// The host's cores belong to the training: poll in vain only where one can be spared (law 17).
Duration spin(const config::DaemonConfig& config) {
  const bool spare_cores = std::thread::hardware_concurrency() > 4;
  return config.spin.value >= 0 ? config.spin : spare_cores ? microseconds(20) : microseconds(0);
}

}  // namespace tensorlane::wiring
