// What the hosts of a job say of it (daemon/wiring/job_report.h), twice, and what happened in between.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/json/json.h"

namespace tensorlane::explain {

// Every time is in seconds. Of a host `seconds` is the time between its two reports, by its own clock; all others are
// what was counted meanwhile.
struct RankTimes {
  std::uint32_t rank = 0;
  double operations = 0;
  double mean_wait = 0;  // of an operation, from this rank's submission to completion
  double blocked = 0;    // its threads, in waits for operations
  // How often streams of a GPU were made to wait for operations: for how long is not known, and then `blocked` is not
  // all of its wait.
  double stream_waits = 0;
  // Of the thread that waits: on a CPU, ready without a CPU; unknown where the kernel or the client does not say, and
  // where the two reports are of two threads.
  std::optional<double> run, runnable;
};

struct ClassTimes {
  std::string name;
  double sent_bytes = 0, received_bytes = 0, demoted_bytes = 0;
  double operations = 0, mean_completion = 0;
  double sends = 0, mean_queue = 0;  // from eligible to given to the transport
  double window_stalls = 0, window_bytes = 0;
  std::optional<double> limit;  // bits/s of one job
};

struct Connection {
  std::string peer, cls;
  std::size_t rail = 0;
  double rtt = 0, min_rtt = 0;  // the second report's
  double segments = 0, resent = 0;
  double acked_bytes = 0, busy = 0;
};

struct RailTimes {
  std::string nic;
  std::optional<double> speed;                   // bits/s, of the fabric file
  std::optional<double> nic_sent, nic_received;  // bytes of whomever
  double sent = 0, received = 0;                 // payload of all jobs of the daemon
  bool over_memory = false;                      // some of it goes to daemons of this machine, over no link
};

struct HostTimes {
  std::string host;
  double seconds = 0, iterations = 0, batched_operations = 0;
  double cpus = 0, lanes = 0;
  std::optional<double> lane_run, lane_runnable;  // of all lanes' threads
  double staging_share = 0;                       // of the limit, at the second report
  std::vector<RankTimes> ranks;
  std::vector<ClassTimes> classes;
  std::vector<Connection> connections;
  double connections_left_out = 0;  // of the second report, which describes no more of them
  std::vector<RailTimes> rails;
};

// Reads two reports of one host. Whatever is missing or makes no sense is an error that says what: kCorrupt. Error
// kInvalidArgument where they are not of one run of a job on one daemon.
Result<HostTimes> difference(const nlohmann::json& before, const nlohmann::json& after);

}  // namespace tensorlane::explain
