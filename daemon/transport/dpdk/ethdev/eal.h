// DPDK's environment (EAL), of which a process has one.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace tensorlane::dpdk {

struct EalConfig {
  // As for every program with DPDK: {"--no-huge", "-m", "512"}. eal_arguments.h says what is added and refused.
  std::vector<std::string> arguments;
};

// Starts EAL, or does nothing where it runs with the same arguments. Any thread; takes a fraction of a second. DPDK's
// messages go to the daemon's log from then on, and nothing goes to standard output. The calling thread keeps its CPUs
// and its signals. Errors: kInvalidArgument; kResourceExhausted, no memory; kPermissionDenied; kAlreadyExists, it runs
// with other arguments, or another process has the same file prefix; kNotFound, this build has no DPDK; kInternal,
// something else, with what DPDK said. After some errors DPDK cannot be started again in this process: the error is
// then the same for every later call.
Status start_eal(const EalConfig& config);

// Gives back what EAL holds. All ports are closed. EAL does not start again in this process.
void end_eal();

// EAL runs.
bool eal_runs();

}  // namespace tensorlane::dpdk
