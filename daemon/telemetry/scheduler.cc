#include "daemon/telemetry/scheduler.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace tensorlane::telemetry {
namespace {

ThreadTimes read_times(const std::string& folder) {
  ThreadTimes times;
  std::ifstream file(folder + "/schedstat");
  times.known = static_cast<bool>(file >> times.run_ns >> times.runnable_ns);
  return times.known ? times : ThreadTimes{};
}

}  // namespace

ThreadTimes read_thread_times(std::uint32_t process, std::uint32_t thread, const std::string& proc) {
  return read_times(fmt::format("{}/{}/task/{}", proc, process, thread));
}

ThreadTimes read_process_times(std::uint32_t process, std::size_t most, const std::string& name,
                               const std::string& proc) {
  namespace fs = std::filesystem;
  ThreadTimes all;
  std::error_code failure;
  std::size_t read = 0;
  for (fs::directory_iterator at(fmt::format("{}/{}/task", proc, process), failure), end;
       !failure && at != end && read < most; at.increment(failure)) {
    std::string called;
    if (!name.empty() && (!std::getline(std::ifstream(at->path() / "comm"), called) || !called.starts_with(name)))
      continue;
    all += read_times(at->path().string());
    ++read;
  }
  return all;
}

}  // namespace tensorlane::telemetry
