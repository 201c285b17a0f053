#include "common/base/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace tensorlane {
namespace {

// What a control group leaves below its limit; nothing when it has none.
std::optional<std::uint64_t> group_leaves(const std::string& folder) {
  std::ifstream limit_file(folder + "/memory.max"), used_file(folder + "/memory.current");
  std::uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::nullopt;  // "max" is not a number
  return limit > used ? limit - used : 0;
}

}  // namespace

Bytes available_memory() {
  std::uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    std::uint64_t kilobytes = 0;
    meminfo >> kilobytes;
    if (key == "MemAvailable:") {
      available = kilobytes << 10;
      break;
    }
    std::getline(meminfo, unit);
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    for (std::string path = line.substr(3); !path.empty();
         path.resize(path.rfind('/'))) {  // limits of the parents count, too
      if (const auto left = group_leaves("/sys/fs/cgroup" + path)) available = std::min(available, *left);
    }
  }
  return Bytes(available);
}

}  // namespace tensorlane
