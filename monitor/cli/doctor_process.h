// What the doctor asks of a process.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/nccl/settings.h"

namespace tensorlane::cli {

struct ProcessEnvironment {
  nccl::Environment variables;
  std::string cut;  // what was not looked at, and why; empty: all was
};

// The variables of a process, below a folder that stands for / (empty: this host). 0: our own. InvalidArgument where
// they cannot be read. A process may pretend any size: of more than 8 MiB, which is more than a program can be begun
// with, the rest is not looked at.
Result<ProcessEnvironment> process_environment(const std::string& root, int pid);

}  // namespace tensorlane::cli
