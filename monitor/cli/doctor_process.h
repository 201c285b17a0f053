// What the doctor asks of a process.
#pragma once

#include <map>
#include <string>

#include "common/base/status.h"

namespace tensorlane::cli {

// The variables of a process, below a folder that stands for / (empty: this host). 0: our own. InvalidArgument where
// they cannot be read.
Result<std::map<std::string, std::string>> process_environment(const std::string& root, int pid);

}  // namespace tensorlane::cli
