// The arguments with which DPDK's EAL is started. EAL prints its usage, ends the process or starts threads for some, so
// what is not known here is refused.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::dpdk {

// What the defaults depend on.
struct EalContext {
  bool huge_pages = false;  // the host has some
  int process = 0;          // its number: part of the default file prefix
  std::vector<int> cpus;    // that this process may use
  Bytes available_memory;   // of the host; 0: not known
};

// `given` with what it leaves open, without a program's name:
// - no PCI devices, unless some are named (-a, -b);
// - no huge pages and 256 MiB, unless there are huge pages or something is said about memory; huge pages in memory
// only;
// - a file prefix of its own, so that other processes with DPDK are no neighbours;
// - no telemetry socket; one lcore, on all CPUs of this process: DPDK starts no threads for packets.
// Errors: kInvalidArgument, an argument that is not known or would end or take over the process, or a value that is
// missing or wrong; kResourceExhausted, more memory than the host has.
Result<std::vector<std::string>> eal_arguments(const std::vector<std::string>& given, const EalContext& context);

}  // namespace tensorlane::dpdk
