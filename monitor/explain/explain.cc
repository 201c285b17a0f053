#include "monitor/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "monitor/explain/rules.h"

namespace tensorlane::explain {
namespace {

// Less of an iteration than this is nobody's concern.
constexpr double kWorthNaming = 0.08;
constexpr double kWorthSeconds = 0.001;

// Of an iteration: where even the rank that waits least waits for longer, computation does not bound the job.
constexpr double kMostExposed = 0.3;

// Findings with one key become one. What holds for all ranks stays apart from what some ranks have more of.
std::pair<Cause, bool> key_of(const Finding& finding) {
  return {finding.cause, finding.where == kAllRanks};
}

// A merged finding names the first places.
std::vector<Finding> merge(const std::vector<Finding>& findings) {
  constexpr std::size_t kNamed = 3;
  std::vector<Finding> merged;
  std::map<std::pair<Cause, bool>, std::vector<std::string>> places;
  for (const Finding& finding : findings) {
    places[key_of(finding)].push_back(finding.where);
    const auto same = std::ranges::find(merged, key_of(finding), key_of);
    if (same == merged.end()) {
      merged.push_back(finding);
    } else {
      same->confidence = std::max(same->confidence, finding.confidence);
      same->seconds = std::max(same->seconds, finding.seconds);
      // The slowest of links that are slow, and the most of what others send.
      same->amount = finding.cause == Cause::kSlowLink ? std::min(same->amount, finding.amount)
                                                       : std::max(same->amount, finding.amount);
    }
  }
  for (Finding& finding : merged) {
    const std::vector<std::string> all = places[key_of(finding)];
    finding.where = all.front();
    for (std::size_t i = 1; i < std::min(all.size(), kNamed); ++i) finding.where += ", " + all[i];
    if (all.size() > kNamed) finding.where += fmt::format(" and {} more", all.size() - kNamed);
    finding.places = all;
  }
  return merged;
}

}  // namespace

std::string rank_name(std::uint32_t rank, const std::string& host) {
  return fmt::format("rank {} on host {}", rank, host);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t middle = (values.size() - 1) / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(middle));
  return values[middle];
}

Job join_hosts(const std::vector<HostTimes>& hosts) {
  Job job;
  job.hosts = &hosts;
  std::vector<double> iterations, lengths;
  for (const HostTimes& host : hosts) {
    iterations.push_back(host.iterations);
    if (host.iterations > 0) lengths.push_back(host.seconds / host.iterations);
  }
  job.iterations = iterations.empty() ? 0 : *std::ranges::min_element(iterations);
  if (job.iterations < 1) return job;
  job.iteration = median(lengths);
  double longest_wait = 0;
  for (const HostTimes& host : hosts) {
    for (const RankTimes& rank : host.ranks) {
      if (rank.operations == 0) continue;
      RankShare share{&rank, &host};
      share.blocked = rank.blocked / host.iterations;
      if (rank.stream_waits == 0) share.computing = std::max(host.seconds / host.iterations - share.blocked, 0.0);
      job.stream_waits += rank.stream_waits;
      if (rank.run) {
        share.run = *rank.run / host.iterations;
        share.runnable = *rank.runnable / host.iterations;
        if (share.computing) share.idle = std::max(*share.computing - *share.run - *share.runnable, 0.0);
      }
      longest_wait = std::max(longest_wait, rank.mean_wait);
      job.ranks.push_back(share);
    }
  }
  for (RankShare& rank : job.ranks) rank.lag = longest_wait - rank.times->mean_wait;
  const auto least = std::ranges::min_element(job.ranks, {}, &RankShare::blocked);
  job.exposed = job.stream_waits > 0 ? job.iteration : least == job.ranks.end() ? 0 : least->blocked;
  return job;
}

bool Job::worth(double seconds) const {
  return seconds >= kWorthNaming * iteration && seconds >= kWorthSeconds;
}

double Job::median_of(double RankShare::*what) const {
  std::vector<double> values;
  for (const RankShare& rank : ranks) values.push_back(rank.*what);
  return median(std::move(values));
}

double Job::median_of(std::optional<double> RankShare::*what) const {
  std::vector<double> values;
  for (const RankShare& rank : ranks) {
    if (rank.*what) values.push_back(*(rank.*what));
  }
  return median(std::move(values));
}

namespace {

// Where streams wait, all that is seen of the network can be hidden behind computation.
void add_possible(const Job& job, std::vector<Finding>* findings) {
  std::vector<Finding> possible;
  find_network_causes(job, &possible);
  for (Finding& finding : possible) {
    finding.confidence = Confidence::kPossible;
    findings->push_back(std::move(finding));
  }
  if (!findings->empty()) return;
  findings->push_back(
      {Cause::kNotKnown, Confidence::kPossible, 0, kAllRanks,
       fmt::format(
           "streams were made to wait for tensors {:.1f} times in an iteration of a rank: for how long they wait "
           "on the GPU, its program does not know",
           job.stream_waits / job.iterations / static_cast<double>(job.ranks.size())),
       "run it for a while with TENSORLANE_STREAM_WAIT=0 (its threads wait in the streams' place) and look again; or "
       "look at a trace of the GPU"});
}

// All wait neither for a slow one, nor for the network most of all.
void add_computation(const Job& job, std::vector<Finding>* findings) {
  const bool sure = job.exposed < 0.05 * job.iteration;
  findings->push_back({Cause::kComputation, sure ? Confidence::kSure : Confidence::kLikely, job.iteration - job.exposed,
                       kAllRanks,
                       fmt::format("the rank that waits least waits for tensors for {:.0f} % of an iteration",
                                   100 * job.exposed / job.iteration),
                       "faster processors, or more of them: the network is no bottleneck"});
}

}  // namespace

Result<Explanation> explain(const std::vector<HostTimes>& hosts) {
  const Job job = join_hosts(hosts);
  if (job.iterations < 1 || job.ranks.empty()) {
    return Status(Code::kUnavailable, "no iteration was completed while the job was watched", "explain",
                  "watch it for longer (--seconds), or see `tensorlane status` for what stands still");
  }
  Explanation all;
  all.iteration = job.iteration;
  all.iterations = job.iterations;
  for (const HostTimes& host : hosts) all.connections_left_out += host.connections_left_out;
  double longest = 0;
  for (const RankShare& rank : job.ranks) {
    longest = std::max(longest, rank.computing.value_or(0));
    all.ranks.push_back({rank.times->rank, rank.host->host, rank.lag, rank.computing});
  }
  std::ranges::sort(
      all.ranks, [](const RankLag& a, const RankLag& b) { return a.lag != b.lag ? a.lag > b.lag : a.rank < b.rank; });
  if (job.stream_waits == 0) {
    all.exposed = job.exposed;
    all.efficiency = std::min(longest / job.iteration, 1.0);
  }
  find_slow_ranks(job, &all.findings);
  const bool all_alike = all.findings.empty();
  find_short_cpus(job, &all.findings);
  if (job.stream_waits > 0) {
    add_possible(job, &all.findings);
  } else {
    if (job.worth(job.exposed)) find_network_causes(job, &all.findings);
    const bool hides_most = !job.worth(job.exposed) || job.exposed < kMostExposed * job.iteration;
    if (all_alike && hides_most) add_computation(job, &all.findings);
  }
  all.findings = merge(all.findings);
  std::ranges::stable_sort(all.findings, [](const Finding& a, const Finding& b) {
    return a.confidence != b.confidence ? a.confidence > b.confidence : a.seconds > b.seconds;
  });
  return all;
}

}  // namespace tensorlane::explain
