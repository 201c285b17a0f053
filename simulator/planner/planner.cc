#include "simulator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/grants.h"
#include "daemon/engine/urgency/efficiency.h"

namespace tensorlane::simulator {
namespace {

using protocol::Pattern;

// The longest slice that the engine knows: what is not sliced at all is cut into these.
constexpr std::uint32_t kUnsliced = engine::Extent::kMaxLength / sizeof(float);
constexpr Bytes kUnbounded{std::uint64_t{1} << 40};
constexpr int kCuts = 6;                // thresholds tried for two classes
constexpr double kWorthAClass = 1.005;  // what one more class, or a deeper pipeline, must gain

bool is_server(std::optional<Pattern> pattern) {
  return pattern == Pattern::kParameterServer || pattern == Pattern::kWholeServer;
}

// Thresholds that put the layers from cuts[i] on behind class i. Cuts ascend, each in [1, layers).
std::vector<double> thresholds_at(const Workload& workload, const std::vector<std::size_t>& cuts) {
  std::vector<double> thresholds;
  for (const std::size_t cut : cuts) {
    // Between two layers, so that no rounding decides.
    thresholds.push_back((urgency_of(workload, cut - 1) + urgency_of(workload, cut)) / 2);
  }
  return thresholds;
}

std::vector<std::size_t> cuts_by_layers(const Workload& workload, std::size_t classes) {
  std::vector<std::size_t> cuts;
  const std::size_t layers = workload.layers.size();
  for (std::size_t i = 1; i < classes; ++i) cuts.push_back(std::max<std::size_t>(1, layers * i / classes));
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Classes of about the same number of bytes.
std::vector<std::size_t> cuts_by_bytes(const Workload& workload, std::size_t classes) {
  std::vector<std::size_t> cuts;
  const auto all = static_cast<double>(workload.elements());
  double before = 0;
  for (std::size_t l = 0; l + 1 < workload.layers.size(); ++l) {
    for (const Variable& v : workload.layers[l].variables) before += static_cast<double>(v.elements);
    const auto next = static_cast<double>(cuts.size() + 1);
    if (cuts.size() + 1 < classes && before >= all * next / static_cast<double>(classes)) cuts.push_back(l + 1);
  }
  return cuts;
}

double mean_wait(const PolicyOutcome& outcome, const Workload& workload, double threshold, bool urgent) {
  double sum = 0;
  int layers = 0;
  for (std::size_t l = 0; l < workload.layers.size(); ++l) {
    if (workload.layers[l].variables.empty() || (urgency_of(workload, l) >= threshold) != urgent) continue;
    sum += outcome.wait_s[l];
    ++layers;
  }
  return layers == 0 ? 0 : sum / layers;
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
  options.host.windows.fill(fabric::window({}, host_rate(request.topology)));
  options.host.ranks = request.ranks_per_host;
  options.host.wake = request.assume.wake;
  options.host.sum_bytes_per_second = request.assume.sum_bytes_per_second;
  options.seed = request.assume.seed;
  crowd(request, classes, &options);
  return options;
}

// What the selector reckons with: the network as it is simulated. A simulated host takes no time for a message.
engine::PatternCosts pattern_costs(const PlanRequest& request) {
  const BitsPerSecond link = host_rate(request.topology);
  const auto goodput = static_cast<std::uint64_t>(static_cast<double>(link.value) * request.assume.goodput);
  engine::PatternCosts costs;
  costs.network = engine::NetworkModel::of(request.assume.wake + request.assume.hop * 2, BitsPerSecond(goodput));
  costs.message = Duration(0);
  costs.sum_bytes_per_second = request.assume.sum_bytes_per_second;
  costs.window = fabric::window({}, link);
  costs.staging = kUnbounded;  // the simulated host has what its slices need
  return costs;
}

// Simulates policies and keeps count and the best of those that are compared.
class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request) {}

  Result<PolicyOutcome> simulate(const Policy& policy) {
    ++simulations_;
    return simulate_policy(request_, policy, &events_);
  }
  Policy policy(const std::string& name) const {
    return {
        name, {}, request_.pattern, engine::default_slice_elements(Dtype::kFloat32, host_rate(request_.topology)), 0};
  }
  // The best of some thresholds for network priority.
  Result<PolicyOutcome> best_of(const std::vector<std::vector<std::size_t>>& cuts) {
    PolicyOutcome best;
    for (const std::vector<std::size_t>& one : cuts) {
      Policy p = policy("network");
      p.thresholds = thresholds_at(request_.workload, one);
      TL_ASSIGN_OR_RETURN(PolicyOutcome outcome, simulate(p));
      if (best.name.empty() || outcome.iteration_s < best.iteration_s) best = std::move(outcome);
    }
    return best;
  }
  std::uint64_t simulations() const { return simulations_; }
  std::uint64_t events() const { return events_; }

 private:
  const PlanRequest& request_;
  std::uint64_t simulations_ = 0, events_ = 0;
};

Status try_classes(const PlanRequest& request, Search& search, Report* report) {
  const std::size_t layers = request.workload.layers.size();
  const std::size_t most = std::min<std::size_t>(request.most_classes, layers);
  for (std::size_t classes = 2; classes <= most; ++classes) {
    std::vector<std::vector<std::size_t>> cuts;
    if (classes == 2) {
      for (std::size_t i = 1; i <= kCuts; ++i) {
        const std::size_t cut = std::clamp<std::size_t>(layers * i / (kCuts + 1), 1, layers - 1);
        if (cuts.empty() || cuts.back().front() != cut) cuts.push_back({cut});
      }
    } else {
      cuts.push_back(cuts_by_layers(request.workload, classes));
    }
    cuts.push_back(cuts_by_bytes(request.workload, classes));
    std::erase_if(cuts, [&](const auto& c) { return c.size() + 1 != classes; });
    if (cuts.empty()) continue;
    TL_ASSIGN_OR_RETURN(PolicyOutcome best, search.best_of(cuts));
    report->policies.push_back(std::move(best));
  }
  return {};
}

// Other slices, another pattern and less depth, from the best policy on. What is recommended must be worth it.
Status refine(const PlanRequest& request, Search& search, Report* report) {
  PolicyOutcome& best = report->recommended;
  const auto attempt = [&](Policy p, double worth) -> Status {
    TL_ASSIGN_OR_RETURN(PolicyOutcome outcome, search.simulate(p));
    if (outcome.iteration_s * worth < best.iteration_s) best = std::move(outcome);
    return {};
  };
  const auto like_best = [&] {
    return Policy{best.name, best.thresholds, best.pattern, best.slice_elements, best.depth};
  };
  if (request.exchange == Exchange::kAllreduce) {
    Policy p = like_best();
    p.pattern = is_server(request.pattern) ? Pattern::kRing : Pattern::kParameterServer;
    TL_RETURN_IF_ERROR(attempt(p, kWorthAClass));
  }
  const std::uint32_t slice = best.slice_elements;
  for (const std::uint32_t elements : {slice / 4, slice * 2}) {
    Policy p = like_best();
    p.slice_elements = std::clamp<std::uint32_t>(elements / 16 * 16, 4096, kUnsliced);
    TL_RETURN_IF_ERROR(attempt(p, kWorthAClass));
  }
  // The smallest depth that is as good.
  for (const std::uint32_t depth : {8u, 4u, 2u, 1u}) {
    Policy p = like_best();
    p.depth = depth;
    const double before = best.iteration_s;
    TL_RETURN_IF_ERROR(attempt(p, 1 / kWorthAClass));
    if (best.depth != depth) break;
    best.iteration_s = std::max(best.iteration_s, before);
  }
  return {};
}

}  // namespace

BitsPerSecond host_rate(const Topology& topology) {
  BitsPerSecond slowest = topology.cables.front().rate;
  for (const Cable& cable : topology.cables) {
    if (cable.a < topology.hosts || cable.b < topology.hosts) slowest = std::min(slowest, cable.rate);
  }
  return slowest;
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
      .slice_elements = vanilla ? kUnsliced : policy.slice_elements,
      .thresholds = policy.thresholds,
      .batch = vanilla ? Bytes() : request.batch};
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
                        .wait_s = run.jobs[0].wait_s,
                        .pauses = run.pauses,
                        .notified = run.totals.notified,
                        .refused = run.totals.refused,
                        .peak_queue_bytes = run.peak_queue_bytes};
  for (const JobOutcome& one : run.jobs) outcome.iteration_s += one.iteration_s / request.jobs;
  outcome.scaling_efficiency = compute / outcome.iteration_s;
  const auto nanoseconds = [](double seconds) { return Duration(std::llround(seconds * 1e9)); };
  const engine::MakespanBounds bounds{nanoseconds(compute + run.busiest_out_s + run.busiest_in_s),
                                      nanoseconds(std::max({compute, run.busiest_out_s, run.busiest_in_s}))};
  outcome.schedule_efficiency =
      engine::schedule_efficiency(bounds, nanoseconds(outcome.iteration_s) + job.workload.overhead * -1);
  return outcome;
}

Result<Report> make_plan(const PlanRequest& request) {
  Search search(request);
  Report report;
  if (!request.only.empty()) {
    Policy p = search.policy(request.only);
    if (request.only == "network") {
      p.thresholds = request.thresholds.empty() ? thresholds_at(request.workload, cuts_by_bytes(request.workload, 2))
                                                : request.thresholds;
    }
    TL_ASSIGN_OR_RETURN(report.recommended, search.simulate(p));
    report.policies = {report.recommended};
    report.simulations = search.simulations();
    report.events = search.events();
    return report;
  }
  for (const char* name : {"vanilla", "sliced", "endhost"}) {
    TL_ASSIGN_OR_RETURN(PolicyOutcome outcome, search.simulate(search.policy(name)));
    report.policies.push_back(std::move(outcome));
  }
  const PolicyOutcome sliced = report.policies[1];
  TL_RETURN_IF_ERROR(try_classes(request, search, &report));
  const auto first_network = report.policies.begin() + 3;
  if (first_network != report.policies.end()) {
    auto best = first_network;
    for (auto p = first_network; p != report.policies.end(); ++p) {
      if (p->iteration_s * kWorthAClass < best->iteration_s) best = p;
    }
    report.net_gain = sliced.iteration_s / best->iteration_s - 1;
    report.gain_over_endhost = report.policies[2].iteration_s / best->iteration_s - 1;
    const double threshold = best->thresholds.front();
    report.urgent_wait_before_s = mean_wait(sliced, request.workload, threshold, true);
    report.urgent_wait_after_s = mean_wait(*best, request.workload, threshold, true);
    report.bulk_wait_before_s = mean_wait(sliced, request.workload, threshold, false);
    report.bulk_wait_after_s = mean_wait(*best, request.workload, threshold, false);
    report.gains = sliced.iteration_s > best->iteration_s * kWorthAClass;
    report.recommended = report.gains ? *best : sliced;
  } else {
    report.recommended = sliced;
  }
  TL_RETURN_IF_ERROR(refine(request, search, &report));
  report.simulations = search.simulations();
  report.events = search.events();
  return report;
}

}  // namespace tensorlane::simulator
