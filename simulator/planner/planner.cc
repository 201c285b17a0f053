#include "simulator/planner/planner.h"

#include <algorithm>
#include <cmath>

#include "simulator/orders/efficiency.h"

namespace tensorlane::simulator {
namespace {

using protocol::Pattern;

constexpr Bytes kUnbounded{std::uint64_t{1} << 40};

bool is_server(std::optional<Pattern> pattern) {
  return pattern == Pattern::kParameterServer || pattern == Pattern::kWholeServer;
}

// Trains where switches are crowded: short beside thresholds, and long enough for large jobs.
constexpr Bytes kCrowdedTrain = kib(16);

// Headroom is what the longest cable delivers until its sender has stopped: a round trip and a train at both ends.
void crowd(const PlanRequest& request, std::size_t classes, RunOptions* options) {
  const Congestion& c = request.congestion;
  if (!c.any()) return;
  FabricNetworkOptions& network = options->network;
  network.train = kCrowdedTrain;
  network.seed = request.assume.seed;
  network.buffer = c.buffer;
  network.marking = c.marking;
  network.go_back_n = c.go_back_n;
  if (c.flow_control) {
    std::uint64_t way = 0;
    for (const Cable& cable : request.topology.cables) {
      const double bytes = static_cast<double>(cable.rate.value) / 8 * 2 * to_seconds(cable.delay);
      way = std::max(way, static_cast<std::uint64_t>(bytes));
    }
    network.buffer->headroom = Bytes(way + 2 * kCrowdedTrain.value);
    const Bytes most = network.buffer->size;
    // Where there is one queue control is in it, too.
    const bool one_queue = network.discipline == Discipline::kFifo && c.lossless != 0;
    const std::uint32_t levels = one_queue ? ~0u : c.lossless;
    network.flow_control = {most, Bytes(most.value - std::min(most.value, 2 * kCrowdedTrain.value)), levels};
  }
  if (c.foreign_load > 0) {
    options->foreign = ForeignOptions{.load = c.foreign_load,
                                      .burst = c.foreign_burst,
                                      .level = static_cast<std::uint8_t>(classes),
                                      .seed = mix(request.assume.seed)};
  }
}

RunOptions run_options(const PlanRequest& request, bool strict, std::size_t classes) {
  RunOptions options;
  options.topology = request.topology;
  options.network.discipline = strict ? Discipline::kStrict : Discipline::kFifo;
  options.network.goodput = request.assume.goodput;
  options.host.window = fabric::window({}, host_rate(request.topology));
  options.host.ranks = request.ranks_per_host;
  options.host.wake = request.assume.wake;
  options.host.sum_bytes_per_second = request.assume.sum_bytes_per_second;
  options.seed = request.assume.seed;
  options.most_events = request.most_events;
  crowd(request, classes, &options);
  return options;
}

// What the selector reckons with: the network as it is simulated. A simulated host takes no time for a message.
engine::PatternCosts pattern_costs(const PlanRequest& request) {
  const BitsPerSecond link = host_rate(request.topology);
  engine::PatternCosts costs;
  costs.network = network_model(request);
  costs.message = Duration(0);
  costs.sum_bytes_per_second = request.assume.sum_bytes_per_second;
  costs.window = fabric::window({}, link);
  costs.staging = kUnbounded;  // the simulated host has what its slices need
  return costs;
}

}  // namespace

BitsPerSecond host_rate(const Topology& topology) {
  BitsPerSecond slowest = topology.cables.front().rate;
  for (const Cable& cable : topology.cables) {
    if (cable.a < topology.hosts || cable.b < topology.hosts) slowest = std::min(slowest, cable.rate);
  }
  return slowest;
}

engine::NetworkModel network_model(const PlanRequest& request) {
  const auto rate = static_cast<double>(host_rate(request.topology).value) * request.assume.goodput;
  return engine::NetworkModel::of(request.assume.wake + request.assume.hop * 2,
                                  BitsPerSecond(static_cast<std::uint64_t>(rate)));
}

Result<PolicyOutcome> simulate_policy(const PlanRequest& request, const Policy& policy, std::uint64_t* events) {
  const bool vanilla = policy.name == "vanilla", network = policy.name == "network";
  const bool ordered = network || policy.name == "endhost";
  JobRun job{.workload = request.workload, .iterations = request.assume.iterations, .single_queue = !ordered};
  const double compute = to_seconds(request.workload.compute());
  job.workload.overhead =
      Duration(std::llround((compute * request.assume.overhead_share + request.assume.overhead_s) * 1e9));
  job.pulls = ordered ? PullOrder::kForward : PullOrder::kRandom;
  job.depth = policy.depth;
  job.placement = {
      .exchange = request.exchange,
      .pattern = vanilla && is_server(policy.pattern) ? std::optional(Pattern::kWholeServer) : policy.pattern,
      .costs = pattern_costs(request),
      .slice_elements = vanilla ? kLongestSlice : policy.slice_elements,
      .thresholds = policy.thresholds,
      .batch = vanilla ? Bytes() : policy.batch.value_or(request.batch)};
  std::vector<JobRun> jobs(request.jobs, job);
  for (std::uint32_t j = 0; j < request.jobs; ++j) jobs[j].start = Time(std::llround(compute * 1e9 * j / request.jobs));

  const RunOptions options = run_options(request, network, policy.thresholds.size() + 1);
  TL_ASSIGN_OR_RETURN(const RunOutcome run, simulate(options, jobs));
  *events += run.events;
  PolicyOutcome outcome{.name = policy.name,
                        .classes = static_cast<std::uint32_t>(policy.thresholds.size() + 1),
                        .thresholds = policy.thresholds,
                        .pattern = job.placement.pattern,
                        .slice_elements = job.placement.slice_elements,
                        .depth = policy.depth,
                        .batch = job.placement.batch,
                        .wait_s = run.jobs[0].wait_s,
                        .pauses = run.pauses,
                        .notified = run.totals.notified,
                        .refused = run.totals.refused,
                        .sent_again = run.totals.sent_again,
                        .peak_queue_bytes = run.peak_queue_bytes,
                        .most_flows = run.most_flows};
  for (const JobOutcome& one : run.jobs) {
    outcome.job_iteration_s.push_back(one.iteration_s);
    outcome.iteration_s += one.iteration_s / request.jobs;
  }
  outcome.scaling_efficiency = compute / outcome.iteration_s;
  const auto nanoseconds = [](double seconds) { return Duration(std::llround(seconds * 1e9)); };
  const orders::MakespanBounds bounds{nanoseconds(compute + run.busiest_out_s + run.busiest_in_s),
                                      nanoseconds(std::max({compute, run.busiest_out_s, run.busiest_in_s}))};
  outcome.schedule_efficiency =
      orders::schedule_efficiency(bounds, nanoseconds(outcome.iteration_s) + job.workload.overhead * -1);
  return outcome;
}

}  // namespace tensorlane::simulator
