// The libraries that `tensorlane bench` can measure, and how their workers are started.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "monitor/cli/bench_group.h"

namespace tensorlane::cli {

// Where the ranks of a bench live: N hosts with one rank each, or N ranks on one host.
struct BenchLayout {
  int hosts = 1;
  int ranks = 1;  // of all hosts together
};

// The names that --compare takes.
std::vector<std::string> peer_names();

// The folder of the workers: bench/ beside this program's own file.
std::string worker_folder();

// How to start a peer. Between hosts it is confined to TCP, as ranks of different hosts have nothing else; on one host
// it may use what it has. `scratch` is an empty folder for the peer's own files. Errors: kNotFound (no worker or no
// mpirun: the library is not installed, or was not when this was built), kInvalidArgument (no such name).
Result<Contender> make_peer(const std::string& name, const BenchLayout& layout, const std::string& workers,
                            const std::string& scratch);

}  // namespace tensorlane::cli
