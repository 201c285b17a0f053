#include "common/nccl/settings.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "common/base/text.h"
#include "common/files/careful.h"

namespace tensorlane::nccl {
namespace {

constexpr char kFile[] = "/etc/nccl.conf";
constexpr Bytes kLongestFile = mib(1);

}  // namespace

Settings::Settings(const Sources& sources, std::vector<Finding>& findings) {
  for (const auto& [name, value] : sources.environment) settings_.try_emplace(name, Setting{value, "environment"});
  if (const Setting* named = find("NCCL_CONF_FILE"); named != nullptr)
    read_file(sources.root, std::string(named->value), true, findings);
  else if (!sources.home.empty())
    read_file(sources.root, sources.home + "/.nccl.conf", false, findings);
  read_file(sources.root, kFile, false, findings);
}

void Settings::read_file(const std::string& root, const std::string& path, bool named, std::vector<Finding>& findings) {
  const bool missing = access((root + path).c_str(), F_OK) != 0;
  if (missing && !named) return;
  if (!path.starts_with('/')) {
    findings.push_back({"N7", Severity::kWarning, "NCCL_CONF_FILE: " + path,
                        "it was not looked at: each process looks for it in its own working folder",
                        "give the path from / on"});
    return;
  }
  const Result<std::string> text =
      files::read(root + path, "NCCL's configuration file", files::Care::kConfiguration, kLongestFile);
  if (!text.ok()) {
    findings.push_back(
        {"N7", Severity::kWarning, (named ? "NCCL_CONF_FILE: " : "") + path,
         (missing ? "NCCL goes on without it and says nothing: " : "NCCL may read it, and it was not looked at: ") +
             text.status().what(),
         text.status().fix()});
    return;
  }
  std::istringstream lines(text.value());
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const std::string place = path + ":" + std::to_string(number);
    const std::size_t end = line.find('=');
    const std::string name = line.substr(0, end);
    if (end == line.npos || name.find_first_of(" \t") != name.npos) {
      if (line.find("NCCL_") != line.npos)
        findings.push_back({"N7", Severity::kWarning, place,
                            "NCCL passes over this line: '" + printable(line.substr(0, 200)) + "'",
                            "write NAME=VALUE from the first column, without blanks or 'export'"});
      continue;
    }
    settings_.try_emplace(name, Setting{line.substr(end + 1), place});
  }
}

const Setting* Settings::find(const std::string& name) const {
  const auto found = settings_.find(name);
  return found == settings_.end() || found->second.value.empty() ? nullptr : &found->second;
}

std::optional<std::int64_t> Settings::number(const std::string& name) const {
  const Setting* setting = find(name);
  if (setting == nullptr) return std::nullopt;
  errno = 0;
  const std::int64_t value = std::strtoll(setting->value.c_str(), nullptr, 0);
  return errno == 0 ? std::optional(value) : std::nullopt;
}

bool Settings::has_prefix(const std::string& prefix) const {
  const auto first = settings_.lower_bound(prefix);
  return first != settings_.end() && first->first.starts_with(prefix);
}

}  // namespace tensorlane::nccl
