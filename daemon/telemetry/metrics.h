// Prometheus metrics of a daemon, over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/all_lanes.h"
#include "daemon/ports/port_metrics.h"

namespace tensorlane::telemetry {

// A class as the metrics name it.
struct ClassLabel {
  std::string name;
  std::uint8_t dscp = 0, pcp = 0, service_level = 0;
};

struct ExporterConfig {
  std::string listen;               // "127.0.0.1:9400"; port 0 chooses one
  std::string host;                 // of the fabric file
  std::vector<ClassLabel> classes;  // data classes by ClassId
  ClassLabel control;
  std::size_t rails = 1;                               // of this host
  std::string rdma_devices = "/sys/class/infiniband";  // where the kernel shows them
  std::string version;                                 // of this daemon
  // By rail: of the port that the daemon drives itself; null or left out where there is none.
  std::vector<std::shared_ptr<const ports::PortMetrics>> ports;
};

// One number that another module counts: name without prefix ("sessions_ended_total"), help text, and how to read it
// from any thread.
struct ExtraCounter {
  std::string name, help;
  std::function<double()> read;
};

// Likewise, with one value for each value of a label: of each user, for instance.
struct ExtraFamily {
  std::string name, help, label;
  std::function<std::vector<std::pair<std::string, double>>()> read;
};

// What jobs and users bring does not grow the page without end: names are cut to kLongestLabel bytes of printable
// UTF-8, and where there are more than kMostSeries flows, or jobs, or kMostPaths transports to peers, the others are
// left out (of flows and paths) or counted together (of jobs).
inline constexpr std::size_t kLongestLabel = 128, kMostSeries = 512, kMostRanks = 512, kMostPaths = 256;
// A name as it stands in a label.
std::string label_text(const std::string& name);

class Exporter {
 public:
  // Serves GET /metrics until destroyed (scrape_server.h). `metrics` outlives it. Errors: kInvalidArgument (address),
  // kUnavailable (port in use).
  static Result<std::unique_ptr<Exporter>> create(const ExporterConfig& config, ports::AllLanes metrics,
                                                  std::vector<ExtraCounter> extra,
                                                  std::vector<ExtraFamily> families = {});
  virtual ~Exporter() = default;
  // Where it listens: "127.0.0.1:9400".
  virtual std::string address() const = 0;
};

}  // namespace tensorlane::telemetry
