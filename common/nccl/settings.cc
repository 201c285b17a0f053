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
constexpr int kLastWithoutHome = 22899, kFirstWithHome = 23000;

// Where ~/.nccl.conf may be, in the order in which they hold.
std::vector<std::string> homes(const Sources& sources, int version) {
  const auto found = sources.environment.find("HOME");
  std::vector<std::string> folders;
  if (found != sources.environment.end() && found->second.starts_with('/') &&
      (version == 0 || version > kLastWithoutHome))
    folders.push_back(found->second);
  const bool only_home = version >= kFirstWithHome && !folders.empty();
  if (!sources.home.empty() && !only_home && (folders.empty() || folders.front() != sources.home))
    folders.push_back(sources.home);
  return folders;
}

}  // namespace

void add_variable(Environment& environment, std::string_view entry) {
  const std::size_t split = entry.find('=');
  if (split != entry.npos) environment.try_emplace(std::string(entry.substr(0, split)), entry.substr(split + 1));
}

Environment own_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add_variable(environment, *entry);
  return environment;
}

std::vector<std::string> library_folders(const Environment& environment) {
  constexpr std::size_t kMost = 1024;
  std::vector<std::string> folders;
  const auto found = environment.find("LD_LIBRARY_PATH");
  std::istringstream list(found == environment.end() ? "" : found->second);
  for (std::string folder; folders.size() < kMost && std::getline(list, folder, ':');) {
    if (folder.starts_with('/')) folders.push_back(folder);
  }
  return folders;
}

std::vector<std::string> loader_folders(const Environment& environment) {
  std::vector<std::string> folders = library_folders(environment);
  for (const char* folder :
       {"/usr/local/lib", "/usr/local/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"})
    folders.emplace_back(folder);
  return folders;
}

Settings::Settings(const Sources& sources, int version, std::vector<Finding>& findings) {
  for (const auto& [name, value] : sources.environment) settings_.try_emplace(name, Setting{value, "environment"});
  if (const Setting* named = find("NCCL_CONF_FILE"); named != nullptr)
    read_file(sources.root, std::string(named->value), true, findings);
  else
    for (const std::string& home : homes(sources, version))
      read_file(sources.root, home + "/.nccl.conf", false, findings);
  read_file(sources.root, kFile, false, findings);
}

void Settings::read_file(const std::string& root, const std::string& path, bool named, std::vector<Finding>& findings) {
  const bool missing = !files::exists({root, path});
  if (missing && !named) return;
  if (!path.starts_with('/')) {
    findings.push_back({"N7", Severity::kWarning, "NCCL_CONF_FILE: " + path,
                        "it was not looked at: each process looks for it in its own working folder",
                        "give the path from / on"});
    return;
  }
  const Result<std::string> text =
      files::read({root, path}, "NCCL's configuration file", files::Care::kConfiguration, kLongestFile);
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

void Settings::force(const std::string& name, const std::optional<std::string>& value, const std::string& place) {
  if (value)
    settings_[name] = {*value, place};
  else
    settings_.erase(name);
}

bool Settings::has_prefix(const std::string& prefix) const {
  const auto first = settings_.lower_bound(prefix);
  return first != settings_.end() && first->first.starts_with(prefix);
}

}  // namespace tensorlane::nccl
