// `tensorlane bench allreduce`: tensorlane and its peers measured in turns in one run, results checked, compared by
// median.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "common/json/json.h"
#include "monitor/cli/bench_contenders.h"
#include "monitor/cli/bench_group.h"

namespace tensorlane::cli {

struct BenchOptions {
  BenchLayout layout;
  std::vector<std::string> compare;  // names of peers
  std::vector<std::uint64_t> sizes;  // bytes, multiples of 4
  int rounds = 5;                    // turns that every contender gets at every size
  std::string pattern = "ring";
  std::vector<std::string> settings;     // lines of daemon.yaml, KEY=VALUE
  std::vector<std::string> protections;  // levels of data_protection to measure, too, each with daemons of its own
  DataProtection protection = DataProtection::kNone;  // of the daemons to start
  std::uint16_t first_port = 0;                       // of our daemons, see ClusterOptions
  std::string json_file;                              // empty: none
  bool peers_only = false;                            // leave tensorlane out: to check the machinery and the peers
};

// The daemons that tensorlane's ranks work with, one per host; they end with the object.
class BenchDaemons {
 public:
  virtual ~BenchDaemons() = default;
  // What a rank needs: torchrun's variables, job, secret, socket of its daemon.
  virtual std::vector<std::pair<std::string, std::string>> environment(int rank) const = 0;
  virtual std::vector<pid_t> pids() const = 0;
  // Payload bytes that all daemons have sent since they started, by transport ("tcp", "local").
  virtual Result<std::map<std::string, std::uint64_t>> bytes_sent() = 0;
};

// Starts the daemons that `options` asks for as children of `processes`.
using StartDaemons =
    std::function<Result<std::unique_ptr<BenchDaemons>>(const BenchOptions& options, process::Processes& processes)>;

// What one contender measured at one size.
struct BenchSamples {
  std::vector<double> seconds;
  double cpu_seconds = 0;
  std::uint64_t allreduces = 0;
};

// How often one command repeats an allreduce of `bytes`: enough for a median, bounded in time.
int bench_count(std::uint64_t bytes);

// One size as the JSON report states it. `ours` null: tensorlane was left out, and peers have no ratio.
nlohmann::json bench_result(std::uint64_t bytes, int ranks, const BenchSamples* ours,
                            const std::map<std::string, BenchSamples>& peers);

// Between hosts an allreduce sends at least 2 (N - 1) / N of the tensor from each of the N hosts, whatever the pattern,
// and nothing may move any other way. `needed` is the sum over hosts and allreduces. kInternal names the transport that
// carried too little or should have carried nothing.
Status check_bytes_sent(const std::map<std::string, std::uint64_t>& before,
                        const std::map<std::string, std::uint64_t>& after, std::uint64_t needed);

// Runs it all and prints a table as it goes. Peers that are not installed are named and left out. The answer is the
// exit status. Errors: those of BenchGroup and of `start_daemons`; kInvalidArgument (options; a JSON file that cannot
// be written).
Result<int> run_bench(const BenchOptions& options, const StartDaemons& start_daemons);

}  // namespace tensorlane::cli
