// Prometheus metrics of a daemon, over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/telemetry.h"

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
};

// One number that another room counts: name without prefix ("sessions_ended_total"), help text, and how to read it from
// any thread.
struct ExtraCounter {
  std::string name, help;
  std::function<double()> read;
};

class Exporter {
 public:
  // Serves GET /metrics until destroyed. `metrics` outlives it. Errors: kInvalidArgument (address), kUnavailable (port
  // in use).
  static Result<std::unique_ptr<Exporter>> create(const ExporterConfig& config, const ports::LaneMetrics& metrics,
                                                  std::vector<ExtraCounter> extra);
  virtual ~Exporter() = default;
  // Where it listens: "127.0.0.1:9400".
  virtual std::string address() const = 0;
};

}  // namespace tensorlane::telemetry
