#include "common/base/available_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
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

// Opened once, and kept: by the time it is asked for there may be no descriptor left.
std::string meminfo_text() {
  static const int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  std::array<char, 16384> text;
  const ssize_t bytes = file < 0 ? 0 : pread(file, text.data(), text.size(), 0);
  return std::string(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
}

}  // namespace

Bytes available_memory() {
  std::uint64_t available = 0;
  std::istringstream meminfo(meminfo_text());
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
