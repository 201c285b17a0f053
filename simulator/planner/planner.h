// What priorities would gain for a training job on a fabric, by simulating it under each policy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/engine/batching/network_model.h"
#include "daemon/engine/grants.h"
#include "simulator/planner/run.h"

namespace tensorlane::simulator {

// What is not known from the request. Defaults are for RoCE with 1,024-byte packets and a server that sums on a CPU
// thread; simulator/README.md says where each comes from.
struct Assumptions {
  double goodput = 0.913;         // of the link's rate: 1,024 of 1,122 bytes on the wire
  double overhead_share = 0.055;  // of the compute time, per iteration: the framework, and waiting for the slowest host
  double overhead_s = 0;          // the same, fixed
  double sum_bytes_per_second = 5e9;
  Duration wake = microseconds(5);  // from an event to the engine
  Duration hop = microseconds(1);   // of every cable and switch
  std::uint64_t iterations = 2;     // simulated and measured, after one more
  std::uint64_t seed = 1;
};

// What crowded switches do, and who else is there. Nothing of it: switches hold whatever the hosts' windows allow, and
// the network is the jobs' alone.
struct Congestion {
  std::optional<SharedBuffer> buffer;
  bool flow_control = false;       // PFC, as soon as the buffer's thresholds say so,
  std::uint32_t lossless = ~1u;    // for these levels of service, as bits; without classes for all of them or none
  bool go_back_n = false;          // what is refused makes everything behind it be sent again, too (RoCE)
  std::optional<Marking> marking;  // ECN for all data classes, with DCQCN in every NIC
  double foreign_load = 0;         // of every host's link, in bursts of others in the least urgent class
  Bytes foreign_burst = mib(1);
  bool any() const { return buffer || marking || foreign_load > 0; }
};

struct PlanRequest {
  Workload workload;
  Topology topology;
  Exchange exchange = Exchange::kAllreduce;
  std::optional<protocol::Pattern> pattern;  // none: the selector's choice for each batch, as with the daemon's `auto`
  Bytes batch;                               // Placement::batch of all policies but vanilla
  std::uint32_t ranks_per_host = 1;
  std::uint32_t jobs = 1;  // alike, on the same hosts, started one after the other within an iteration
  std::uint8_t most_classes = 8;
  std::string only;                // simulate this policy alone; empty: compare them all
  std::vector<double> thresholds;  // of network when it is alone; empty: two classes of as many bytes
  Assumptions assume;
  Congestion congestion;
  std::uint64_t most_events = 0;  // of each simulation: RunOptions::most_events
};

struct PolicyOutcome {
  std::string name;  // vanilla, sliced, endhost, network
  std::uint32_t classes = 1;
  std::vector<double> thresholds;
  std::optional<protocol::Pattern> pattern;  // none: by batch
  std::uint32_t slice_elements = 0;
  std::uint32_t depth = 0;  // slices of a class that staging holds at once
  Bytes batch;              // Placement::batch
  double iteration_s = 0;   // of all jobs: the mean
  std::vector<double> job_iteration_s;
  double scaling_efficiency = 0;   // compute time / iteration
  double schedule_efficiency = 0;  // TicTac, equation 3; below 0 where hosts wait for each other
  std::vector<double> wait_s;      // by layer
  // Of the whole run: how often a link was stopped, and flows were told to send slower; trains that a switch refused,
  // and that were sent again for it; most that ever waited at a port.
  std::uint64_t pauses = 0, notified = 0, refused = 0, sent_again = 0, peak_queue_bytes = 0;
  std::size_t most_flows = 0;  // that a host has, of all jobs, towards all others
};

// What was changed about the best policy so far.
struct Alternative {
  std::string what;  // "slices of 65536 elements"
  double iteration_s = 0;
};

struct Report {
  std::vector<PolicyOutcome> policies;  // vanilla, sliced, endhost, network by number of classes
  PolicyOutcome recommended;
  std::vector<Alternative> tried;  // on the way from the best of `policies` to `recommended`
  bool gains = false;              // priorities gain anything; else `recommended` is without any
  double net_gain = 0;           // of the best policy with network priority over sliced, in throughput; may be negative
  double gain_over_endhost = 0;  // of the same over end-host order
  double urgent_wait_before_s = 0, urgent_wait_after_s = 0;  // mean of the layers of its class 0, sliced and then
  double bulk_wait_before_s = 0, bulk_wait_after_s = 0;      // of all others
  std::uint64_t simulations = 0, events = 0;
};

// Compares the policies, and searches from the best of them on for a better pattern, thresholds, slices, batches and
// the least depth (search.cc). Errors as of simulate().
Result<Report> make_plan(const PlanRequest& request);

// The longest slice that the engine knows, in elements: what is not sliced at all is cut into these.
inline constexpr std::uint32_t kLongestSlice = engine::Extent::kMaxLength / sizeof(float);

// One policy: "vanilla", "sliced", "endhost", or "network" with these thresholds. A `depth` of 0 is what the daemon's
// staging gives.
struct Policy {
  std::string name;
  std::vector<double> thresholds;
  std::optional<protocol::Pattern> pattern;
  std::uint32_t slice_elements = 0;
  std::uint32_t depth = 0;
  std::optional<Bytes> batch = {};  // none: the request's
};
Result<PolicyOutcome> simulate_policy(const PlanRequest& request, const Policy& policy, std::uint64_t* events);

// One transfer from host to host while nothing else moves, as it is simulated. Its threshold is Caramel's for batches.
engine::NetworkModel network_model(const PlanRequest& request);

// The slowest link of a host.
BitsPerSecond host_rate(const Topology& topology);

}  // namespace tensorlane::simulator
