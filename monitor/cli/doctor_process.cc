#include "monitor/cli/doctor_process.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "common/files/place.h"

namespace tensorlane::cli {

Result<ProcessEnvironment> process_environment(const std::string& root, int pid) {
  if (pid == 0) return ProcessEnvironment{nccl::own_environment(), ""};
  constexpr Bytes kMost = mib(8);
  const files::Place place{root, fmt::format("/proc/{}/environ", pid)};
  const std::optional<std::string> text = files::read_beginning(place, Bytes(kMost.value + 1));
  if (!text)
    return Status(Code::kInvalidArgument, "the environment of the process cannot be read", root + place.path,
                  "name a process of yours, or be root");
  ProcessEnvironment environment;
  if (text->size() > kMost.value)
    environment.cut = fmt::format("the process shows an environment of more than {} MiB: the rest was not looked at",
                                  kMost.value >> 20);
  for (std::string_view rest = *text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    if (!environment.cut.empty() && entry.size() == rest.size()) break;  // its end was cut off
    nccl::add_variable(environment.variables, entry);
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
  }
  return environment;
}

}  // namespace tensorlane::cli
