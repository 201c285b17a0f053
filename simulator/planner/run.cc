#include "simulator/planner/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "daemon/engine/pattern/route.h"
#include "daemon/engine/staging.h"

namespace tensorlane::simulator {
namespace {

constexpr std::uint64_t kLook = 1u << 16;        // events between two looks whether anything moves
constexpr Duration kStandstill = seconds(1000);  // longer than any transfer may take

// What Engine::apply_plan() demands at least: the largest slice of every class at once, from all that send it.
std::uint64_t least_staging(const protocol::Plan& plan, std::uint16_t hosts) {
  std::array<std::uint64_t, kMaxDataClasses> largest{};
  for (const protocol::PlanTensor& t : plan.tensors) {
    const std::uint64_t sources = engine::most_sources(t.pattern, hosts);
    // A barrier is a sum of one element.
    const std::uint64_t elements = std::max<std::uint64_t>(1, std::min<std::uint64_t>(t.slice_elements, t.elements));
    const std::uint64_t bytes = sources * engine::pages_for(elements * sizeof(float)) * engine::kPageBytes;
    largest[t.cls.value] = std::max(largest[t.cls.value], bytes);
  }
  std::uint64_t sum = 0;
  for (std::uint64_t bytes : largest) sum += bytes;
  return sum;
}

host::HostConfig host_config(const JobRun& job, const protocol::Plan& plan, std::uint16_t hosts) {
  host::HostConfig config;
  config.messages = false;  // training has none
  config.classes = static_cast<std::uint8_t>(job.placement.thresholds.size() + 1);
  config.single_queue = job.single_queue;
  const std::uint64_t least = least_staging(plan, hosts);
  config.staging = job.depth > 0 ? Bytes(job.depth * least) : std::max(config.staging, Bytes(2 * least));
  return config;
}

class Run {
 public:
  Run(const RunOptions& options, const std::vector<JobRun>& jobs)
      : options_(options), jobs_(jobs), network_(events_, options.topology, options.network), trainers_(jobs.size()) {}

  Status prepare() {
    const std::uint16_t hosts = options_.topology.hosts;
    Random random(options_.seed);
    for (const JobRun& job : jobs_) plans_.push_back(plan_of(job.workload, job.placement, hosts));
    const host::HostConfig config = host_config(jobs_.front(), plans_.front().plan, hosts);
    for (std::uint16_t h = 0; h < hosts; ++h) {
      hosts_.push_back(
          PlannedDaemon::create(HostIndex(h), {events_, network_, metrics_, hosts}, options_.host, config));
    }
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      const JobRun& job = jobs_[j];
      for (std::uint16_t h = 0; h < hosts; ++h) {
        TL_RETURN_IF_ERROR(
            hosts_[h]->add_job(plans_[j].plan, [this, j, h](TensorId tensor) { trainers_[j][h]->completed(tensor); }));
        const TrainerOptions trainer{job.placement.exchange, job.pulls, job.warm_up + job.iterations,
                                     job.computing.empty() || std::ranges::count(job.computing, HostIndex(h)) > 0};
        trainers_[j].push_back(std::make_unique<Trainer>(events_, *hosts_[h], j, job.workload, plans_[j], trainer,
                                                         random.fork(j << 32 | h)));
      }
      events_.at(job.start, [this, j] {
        for (auto& trainer : trainers_[j]) trainer->start();
      });
    }
    if (options_.foreign) {
      foreign_.emplace(events_, network_, options_.topology, *options_.foreign);
      foreign_->start();
    }
    return {};
  }

  Result<RunOutcome> run() {
    while (!finished()) {
      if (options_.most_events > 0 && events_.executed() >= options_.most_events)
        return Status(Code::kResourceExhausted, "the simulation is too long",
                      fmt::format("after {} events", events_.executed()), "simulate less");
      if (events_.run_next() && !stands_still()) continue;
      return Status(Code::kInternal, "the simulated job stands still",
                    fmt::format("after {} events", events_.executed()), "report this with the command");
    }
    return outcome();
  }

 private:
  const Trainer& observed(std::size_t job) const {
    const HostIndex host = jobs_[job].computing.empty() ? HostIndex(0) : jobs_[job].computing.front();
    return *trainers_[job][host.value];
  }
  // Bursts of others never end. The jobs themselves compute for at most an iteration without sending anything.
  bool stands_still() {
    if (!foreign_ || events_.executed() % kLook != 0) return false;
    Duration longest = kStandstill;
    for (const JobRun& job : jobs_) longest += job.workload.compute() + job.workload.overhead;
    const std::uint64_t sent = network_.operations() - foreign_->bursts();
    if (sent != sent_) moved_at_ = events_.now();
    sent_ = sent;
    return events_.now() - moved_at_ > longest;
  }
  bool finished() const {
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      if (observed(j).ends().size() < jobs_[j].warm_up + jobs_[j].iterations) return false;
    }
    return true;
  }

  RunOutcome outcome() const {
    RunOutcome result;
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      const Trainer& trainer = observed(j);
      const std::uint64_t warm_up = jobs_[j].warm_up, all = warm_up + jobs_[j].iterations;
      const Time from = warm_up == 0 ? jobs_[j].start : trainer.ends()[warm_up - 1];
      JobOutcome one{.pulled = trainer.pulled(), .pushed = trainer.pushed(), .ends = trainer.ends()};
      one.iteration_s = to_seconds(trainer.ends()[all - 1] - from) / static_cast<double>(jobs_[j].iterations);
      one.wait_s = trainer.waits_s();
      result.jobs.push_back(std::move(one));
    }
    const auto iterations = static_cast<double>(observed(0).ends().size());
    const std::vector<FabricNetwork::PortCounters> ports = network_.counters();
    for (std::size_t c = 0; c < options_.topology.cables.size(); ++c) {
      const bool from_a = options_.topology.cables[c].a < options_.topology.hosts;
      const bool from_b = options_.topology.cables[c].b < options_.topology.hosts;
      const double a_to_b = to_seconds(ports[2 * c].busy) / iterations;
      const double b_to_a = to_seconds(ports[2 * c + 1].busy) / iterations;
      if (from_a) result.busiest_out_s = std::max(result.busiest_out_s, a_to_b);
      if (from_a) result.busiest_in_s = std::max(result.busiest_in_s, b_to_a);
      if (from_b) result.busiest_out_s = std::max(result.busiest_out_s, b_to_a);
      if (from_b) result.busiest_in_s = std::max(result.busiest_in_s, a_to_b);
    }
    for (const FabricNetwork::PortCounters& port : ports) {
      result.pauses += port.pauses;
      result.peak_queue_bytes = std::max(result.peak_queue_bytes, port.peak_bytes);
    }
    result.events = events_.executed();
    result.totals = network_.totals();
    result.most_flows = network_.most_flows();
    return result;
  }

  const RunOptions& options_;
  const std::vector<JobRun>& jobs_;
  EventQueue events_;
  FabricNetwork network_;
  std::optional<ForeignTraffic> foreign_;
  std::uint64_t sent_ = 0;  // by the jobs, when it was looked at last
  Time moved_at_;
  std::vector<JobPlan> plans_;
  ports::LaneMetrics metrics_;
  std::vector<std::unique_ptr<PlannedDaemon>> hosts_;
  std::vector<std::vector<std::unique_ptr<Trainer>>> trainers_;
};

}  // namespace

Result<RunOutcome> simulate(const RunOptions& options, const std::vector<JobRun>& jobs) {
  Run run(options, jobs);
  TL_RETURN_IF_ERROR(run.prepare());
  return run.run();
}

}  // namespace tensorlane::simulator
