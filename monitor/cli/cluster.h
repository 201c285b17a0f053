// Daemons on this machine for a run: one per host, on loopback or in a lab's network namespaces, and what ranks need to
// use them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/process/process.h"
#include "monitor/cli/lab.h"
#include "monitor/cli/local_fabric.h"
#include "monitor/cli/run_lock.h"
#include "monitor/cli/run_ports.h"

namespace tensorlane::cli {

struct ClusterOptions {
  std::string name;  // of the runtime folder and of the job; empty: one is made up
  int hosts = 4;
  int ranks_per_host = 1;
  int rails = 0;                 // of each host; in a lab the first ones of what it has. 0: 1, in a lab all
  std::vector<std::string> on;   // hosts of the lab to use, in this order; empty: its first `hosts`
  std::string lab;               // run in this lab, which is up; empty: on loopback
  std::uint16_t first_port = 0;  // of a block of RunPorts, by which clusters share hosts; 0: the first that is free
  std::map<std::string, std::string> settings;             // lines of daemon.yaml: "pattern" -> "ring"
  DataProtection data_protection = DataProtection::kNone;  // of the fabric file; where a lab has one, at least its own
  std::string timeline_folder;                             // HOST.json each; made when it is not there; empty: none
  std::string log_folder;  // HOST.log each, which stay; made when it is not there; empty: with the runtime folder
};

// Adds what `--set KEY=VALUE` said. Relative paths of files that a daemon writes count from this process's folder,
// since the daemons' own folder goes with the run. Errors: kInvalidArgument for one without '='.
Status add_settings(const std::vector<std::string>& settings, ClusterOptions* options);

class Cluster {
 public:
  // Starts the daemons as children of `processes` and waits until each takes connections. Errors: as make_runtime,
  // open_lab and RunPorts::claim; a daemon that does not start is kUnavailable, or kInvalidArgument where it refused
  // its configuration, with the end of its log as where; kInvalidArgument for a folder that cannot be made. What killed
  // runs have left is removed first.
  static Result<std::unique_ptr<Cluster>> start(const ClusterOptions& options, process::Processes& processes);
  // Removes the runtime folder; the children belong to `processes`.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  int world_size() const { return options_.hosts * options_.ranks_per_host; }
  const std::string& job() const { return job_; }
  const fabric::Fabric& fabric() const { return runtime_.fabric; }
  const std::string& host_of(int rank) const {
    return runtime_.fabric.hosts[static_cast<std::size_t>(rank / options_.ranks_per_host)].name;
  }
  std::string socket(const std::string& host) const { return runtime_.socket(host); }
  std::string log_file(const std::string& host) const { return log_folder() + "/" + host + ".log"; }
  // Where the host's daemon serves its metrics: "10.77.0.1:7101".
  std::string metrics_address(const std::string& host) const;

  // torchrun's variables and ours for a rank: RANK, WORLD_SIZE, ..., MASTER_ADDR, TENSORLANE_SOCKET,
  // TENSORLANE_JOB_SECRET.
  std::vector<std::pair<std::string, std::string>> environment(int rank) const;
  // What to execute for `argv` to run on the rank's host.
  Result<std::vector<std::string>> command(int rank, const std::vector<std::string>& argv) const;
  // Child index of each host's daemon, in the fabric's order.
  const std::vector<std::size_t>& daemons() const { return daemons_; }
  // The host whose daemon is this child; empty when it is none.
  std::string daemon_host(std::size_t child) const;
  // Prints the last lines of a daemon's log to the standard error, one by one.
  void print_log_tail(const std::string& host) const;
  // The warnings and errors of all daemons' logs, at most so many of each.
  std::vector<std::string> complaints(std::size_t most) const;
  // Where the logs are when this object is gone: in the log folder, else in a copy beside the runtime folder. Of such
  // copies the last ten are kept.
  std::string keep_logs() const;

 private:
  Cluster(ClusterOptions options, RuntimeDir runtime, RunLock lock, RunPorts ports)
      : options_(std::move(options)), runtime_(std::move(runtime)), lock_(std::move(lock)), ports_(std::move(ports)) {}
  const std::string& log_folder() const { return options_.log_folder.empty() ? runtime_.path : options_.log_folder; }
  Status start_daemon(const fabric::Host& host, process::Processes& processes);
  Status wait_ready(const fabric::Host& host, std::size_t child, process::Processes& processes) const;
  Result<std::vector<std::string>> command_on_host(const std::string& host, const std::vector<std::string>& argv) const;

  ClusterOptions options_;
  RuntimeDir runtime_;
  RunLock lock_;
  RunPorts ports_;
  std::string job_, secret_;
  std::vector<std::size_t> daemons_;
  std::unique_ptr<Lab> lab_;
};

// The folder of this program: other commands of the build or package are beside it.
std::string program_folder();

}  // namespace tensorlane::cli
