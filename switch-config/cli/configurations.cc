#include "switch-config/cli/configurations.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "switch-config/lint/sonic.h"

namespace tensorlane::switches {

namespace fs = std::filesystem;

Status wrong(const std::string& what, const std::string& where, const std::string& fix) {
  return {Code::kInvalidArgument, what, where, fix};
}

Result<Configuration> load_configuration(const std::string& path, const std::string& kind) {
  TL_ASSIGN_OR_RETURN(std::string text, lint::read_configuration(path));
  if (!kind.empty()) {
    TL_ASSIGN_OR_RETURN(const lint::Language language, lint::parse_language(kind));
    return Configuration{path, std::move(text), language};
  }
  const auto language = lint::recognise(text);
  if (language) return Configuration{path, std::move(text), *language};
  return wrong("it is in no language that lint understands: no JSON and no QoS", path,
               "say which it is with --kind, " + lint::parse_language("").status().fix());
}

Result<FilesByDevice> files_by_device(const std::string& folder) {
  FilesByDevice all;
  std::size_t count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) {
      all[entry.path().stem().string()].insert(entry.path());
      ++count;
    }
    if (!entry.is_directory(ignored)) continue;
    for (const auto& file : fs::directory_iterator(entry.path(), ignored)) {
      if (!file.is_regular_file(ignored)) continue;
      all[entry.path().filename().string()].insert(file.path());
      ++count;
    }
    if (count > kMaxFiles) return wrong(fmt::format("more than {} files", kMaxFiles), folder, "name fewer");
  }
  if (error) return wrong(error.message(), folder, "name a folder that you may read");
  return all;
}

Result<std::vector<Configuration>> readable(const std::set<fs::path>& files) {
  constexpr std::array<std::string_view, 4> kUnread{"openconfig.json", "apply.sh", "verify.sh", "rollback.sh"};
  std::vector<Configuration> all;
  for (const fs::path& file : files) {
    if (std::find(kUnread.begin(), kUnread.end(), file.filename().string()) != kUnread.end()) continue;
    TL_ASSIGN_OR_RETURN(std::string text, lint::read_configuration(file.string()));
    if (const auto language = lint::recognise(text)) all.push_back({file.string(), std::move(text), *language});
  }
  return all;
}

}  // namespace tensorlane::switches
