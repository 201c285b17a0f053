#include "monitor/cli/doctor_process.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tensorlane::cli {
namespace {

void keep(std::map<std::string, std::string>& environment, const std::string& entry) {
  const std::size_t split = entry.find('=');
  if (split != entry.npos) environment.try_emplace(entry.substr(0, split), entry.substr(split + 1));
}

}  // namespace

Result<std::map<std::string, std::string>> process_environment(const std::string& root, int pid) {
  std::map<std::string, std::string> environment;
  if (pid == 0) {
    for (char** entry = environ; *entry != nullptr; ++entry) keep(environment, *entry);
    return environment;
  }
  const std::filesystem::path path =
      std::filesystem::path(root.empty() ? "/" : root) / "proc" / std::to_string(pid) / "environ";
  std::ifstream file(path);
  std::string entry;
  // The first byte is read here: opening says nothing of the right to read.
  if (!file || !(std::getline(file, entry, '\0') || file.eof()))
    return Status(Code::kInvalidArgument, "the environment of the process cannot be read", path.string(),
                  "name a process of yours, or be root");
  do keep(environment, entry);
  while (std::getline(file, entry, '\0'));
  return environment;
}

}  // namespace tensorlane::cli
