// One simulated run: jobs on the hosts of a network, some iterations long.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "simulator/network/fabric_network.h"
#include "simulator/network/foreign_traffic.h"
#include "simulator/network/topology.h"
#include "simulator/planner/daemon.h"
#include "simulator/planner/trainer.h"
#include "simulator/planner/workload.h"

namespace tensorlane::simulator {

struct JobRun {
  Workload workload;
  Placement placement;
  PullOrder pulls = PullOrder::kForward;
  std::uint64_t iterations = 1;      // that are measured
  std::uint64_t warm_up = 1;         // before them
  bool single_queue = false;         // order of arrival, no urgency at all
  std::vector<HostIndex> computing;  // empty: all hosts
  std::uint32_t depth = 0;  // slices of each class that staging holds at once; 0: what the daemon has, at least two
  Time start;
};

struct RunOptions {
  Topology topology;
  FabricNetworkOptions network;
  HostOptions host;
  std::optional<ForeignOptions> foreign;
  std::uint64_t seed = 1;
  std::uint64_t most_events = 0;  // after which it is given up; 0: never
};

struct JobOutcome {
  double iteration_s = 0;            // mean over the measured iterations
  std::vector<double> wait_s;        // by layer: mean from being asked for until it is here
  std::vector<Time> pulled, pushed;  // by layer, of the last iteration on the first computing host
  std::vector<Time> ends;            // of the iterations, there
};

struct RunOutcome {
  std::vector<JobOutcome> jobs;
  double busiest_out_s = 0,
         busiest_in_s = 0;  // per iteration of the first job: how long the busiest host sent, received
  std::uint64_t events = 0;
  std::uint64_t pauses = 0;      // by flow control
  FabricNetwork::Totals totals;  // of marks and full buffers
  std::uint64_t peak_queue_bytes = 0;
  std::size_t most_flows = 0;  // that a host has
};

// Jobs are of as many classes, with or without urgency alike. kInvalidArgument and kResourceExhausted as of
// Engine::extend_plan(); kInternal when the run ends before all iterations have; kResourceExhausted also after
// most_events.
Result<RunOutcome> simulate(const RunOptions& options, const std::vector<JobRun>& jobs);

}  // namespace tensorlane::simulator
