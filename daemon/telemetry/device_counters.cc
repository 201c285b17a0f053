#include "daemon/telemetry/device_counters.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace tensorlane::telemetry {
namespace {

namespace fs = std::filesystem;

// Milliseconds between two readings of the device, by which nothing is counted.
constexpr const char* kSetting = "lifespan";

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure))
    found.push_back(at->path());
  return found;
}

}  // namespace

std::vector<DeviceCounter> read_device_counters(const std::string& folder) {
  std::vector<DeviceCounter> counters;
  for (const fs::path& device : entries(folder)) {
    for (const fs::path& port : entries(device / "ports")) {
      for (const fs::path& file : entries(port / "hw_counters")) {
        std::uint64_t value = 0;
        if (file.filename() == kSetting || !(std::ifstream(file) >> value)) continue;
        counters.push_back({device.filename(), port.filename(), file.filename(), static_cast<double>(value)});
      }
    }
  }
  std::ranges::sort(counters, {}, [](const DeviceCounter& c) { return std::tie(c.device, c.port, c.name); });
  return counters;
}

}  // namespace tensorlane::telemetry
