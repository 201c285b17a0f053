// Whether the NCCL of a process sends its groups in the classes of the fabric. Read-only.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "switch-config/findings/findings.h"

namespace tensorlane::cli {

struct NcclDoctorOptions {
  std::string root;  // a folder that stands for /; empty: this host, or of a process what it sees as /
  int pid = 0;       // whose environment; 0: our own
  // Whose classes; null: those of the policy that TENSORLANE_NCCL_POLICY names there, if it names one.
  const fabric::Fabric* fabric = nullptr;
  // A libnccl.so.2; empty: the one that the process has loaded, or that its loader would find.
  std::string library;
};

// The rules N1 to N8 (common/nccl/preflight.h). InvalidArgument for a process that is not there, and for a library in
// which no version is found.
Result<findings::Report> examine_nccl(const NcclDoctorOptions& options);

}  // namespace tensorlane::cli
