#include "monitor/cli/doctor_nic.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "common/process/process.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::cli {
namespace {

using lint::Language;

// What the command prints; nothing where it cannot be run, or fails.
std::string output_of(const std::vector<std::string>& command) {
  const Result<std::string> output = process::run_checked(command);
  return output.ok() ? *output : "";
}

std::string ask(Language language, const std::string& interface) {
  if (language == Language::kMlnxQos) return output_of({"mlnx_qos", "-i", interface});
  std::string text;
  for (const char* object : {"dcbx", "pfc", "app", "ets", "buffer"})  // a driver may know some of them only
    text += output_of({"dcb", object, "show", "dev", interface});
  return text;
}

std::string read_copy(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::optional<NicQos> read_nic_qos(const std::string& root, const std::string& interface) {
  for (const Language language : {Language::kMlnxQos, Language::kDcb}) {
    const std::filesystem::path copy = std::filesystem::path(root) / lint::language_name(language) / interface;
    std::string text = root.empty() ? ask(language, interface) : read_copy(copy);
    if (!text.empty()) return NicQos{interface, language, std::move(text)};
  }
  return std::nullopt;
}

std::string NicQos::place() const {
  return fmt::format("{} {}", by_dcb() ? "dcb show dev" : "mlnx_qos -i", interface);
}

std::optional<bool> NicQos::trusts_dscp() const {
  if (by_dcb()) return std::nullopt;
  return text.find("Priority trust state: dscp") != text.npos;
}

std::string NicQos::pfc_command(unsigned mask) const {
  std::string flags;
  for (unsigned p = 0; p < switches::kQueues; ++p) {
    const bool on = (mask >> p & 1) != 0;
    if (by_dcb())
      flags += on ? fmt::format(" {}:on", p) : "";
    else
      flags += fmt::format("{}{}", p == 0 ? "" : ",", on ? 1 : 0);
  }
  return by_dcb() ? fmt::format("dcb pfc set dev {} prio-pfc all:off{}", interface, flags)
                  : fmt::format("mlnx_qos -i {} --pfc {}", interface, flags);
}

std::string NicQos::trust_command() const {
  return by_dcb() ? fmt::format("dcb app replace dev {} dscp-prio DSCP:PRIORITY for each class", interface)
                  : fmt::format("mlnx_qos -i {} --trust dscp", interface);
}

std::string NicQos::map_command(unsigned dscp, unsigned priority) const {
  return by_dcb() ? fmt::format("dcb app replace dev {} dscp-prio {}:{}", interface, dscp, priority)
                  : fmt::format("mlnx_qos -i {} --dscp2prio set,{},{}", interface, dscp, priority);
}

}  // namespace tensorlane::cli
