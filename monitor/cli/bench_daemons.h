// The daemons of `tensorlane bench`, on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "monitor/cli/bench.h"

namespace tensorlane::cli {

// Starts one daemon per host on the loopback and waits until all are ready. A StartDaemons; `processes` outlives the
// daemons' use. Errors: those of Cluster::start.
Result<std::unique_ptr<BenchDaemons>> start_bench_daemons(const BenchOptions& options, process::Processes& processes);

// What a daemon's status says its transports have sent: {"transports": {"tcp": {"bytes_sent": 123}}}. `where` goes into
// the error, kVersionMismatch.
Result<std::map<std::string, std::uint64_t>> bytes_sent_of_status(const std::string& status, const std::string& where);

}  // namespace tensorlane::cli
