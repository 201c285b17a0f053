// Files with configurations, as commands find them: which of them are of one device, and in what language each is.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/lint/languages.h"

namespace tensorlane::switches {

// InvalidArgument.
Status wrong(const std::string& what, const std::string& where, const std::string& fix);

inline constexpr std::size_t kMaxFiles = 20'000;

struct Configuration {
  std::string path, text;
  lint::Language language;
};

// Reads a file in the language `kind`, where that is not empty, else in the one that the file speaks. InvalidArgument
// where lint reads none such.
Result<Configuration> load_configuration(const std::string& path, const std::string& kind);

// The files of each device in a folder that has a folder or files for each, which are called like it. InvalidArgument
// for what is no folder, and for more than kMaxFiles.
using FilesByDevice = std::map<std::string, std::set<std::filesystem::path>>;
Result<FilesByDevice> files_by_device(const std::string& folder);

// Those files of a device that lint reads, in alphabetical order, without what `render` writes beside them: OpenConfig
// and the scripts of hosts.
Result<std::vector<Configuration>> readable(const std::set<std::filesystem::path>& files);

}  // namespace tensorlane::switches
