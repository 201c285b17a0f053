// Who computes longer than the others, and why.
#include <fmt/format.h>

#include <algorithm>

#include "monitor/explain/rules.h"

namespace tensorlane::explain {
namespace {

constexpr double kShortOfCpu = 0.15;  // of the time

std::string name_of(const RankShare& rank) {
  return rank_name(rank.times->rank, rank.host->host);
}

// What a rank does longer than the median rank: the longest part of it.
struct Extra {
  Cause cause;
  double seconds;
  const char* does;
  const char* help;
};

std::optional<Extra> longest_extra(const Job& job, const RankShare& rank) {
  if (!rank.run || !rank.idle) return std::nullopt;
  const Extra computes{Cause::kSlowComputing, *rank.run - job.median_of(&RankShare::run), "on a CPU",
                       "look for other work on its processor, its frequency and its temperature; or give it less data"};
  const Extra idles{Cause::kSlowInput, *rank.idle - job.median_of(&RankShare::idle),
                    "neither on a CPU nor waiting for tensors",
                    "look at what its program waits for: storage, data loader workers, a GPU"};
  const Extra waits{Cause::kNoCpu, *rank.runnable - job.median_of(&RankShare::runnable), "ready to run without a CPU",
                    "see what else runs on the host (top), and give the rank cores of its own"};
  return std::max({computes, idles, waits}, [](const Extra& a, const Extra& b) { return a.seconds < b.seconds; });
}

}  // namespace

void find_slow_ranks(const Job& job, std::vector<Finding>* findings) {
  if (job.ranks.size() < 2) return;
  const double usual = job.median_of(&RankShare::computing), usual_lag = job.median_of(&RankShare::lag);
  for (const RankShare& rank : job.ranks) {
    if (!rank.computing) continue;
    const double extra = *rank.computing - usual, later = rank.lag - usual_lag;
    // Both must show it: that it is busy for longer, and that the others get its tensors later.
    if (!job.worth(extra) || later < 0.15 * extra) continue;
    const std::optional<Extra> most = longest_extra(job, rank);
    const bool clear = most && most->seconds > 0.4 * extra;
    const Confidence confidence = later < 0.3 * extra || !clear ? Confidence::kLikely : Confidence::kSure;
    const double cost = std::min(clear ? std::max(most->seconds, extra) : extra, job.iteration);
    const std::string evidence = fmt::format(
        "it is busy for {:.1f} ms of an iteration, {:.1f} ms more than others{}; others wait {:.1f} ms longer for an "
        "operation",
        *rank.computing * 1e3, extra * 1e3,
        clear ? fmt::format(" ({:.1f} ms of that {})", most->seconds * 1e3, most->does) : "", later * 1e3);
    findings->push_back(
        {clear ? most->cause : Cause::kSlowComputing, confidence, cost, name_of(rank), evidence,
         clear ? most->help
               : "see what its program does; computing, input and a lack of CPUs cannot be told apart here"});
  }
}

bool lanes_lack_cpu(const HostTimes& host) {
  if (!host.lane_runnable || host.lanes <= 0) return false;
  return *host.lane_runnable > kShortOfCpu * host.seconds * host.lanes && *host.lane_runnable > *host.lane_run;
}

void find_short_cpus(const Job& job, std::vector<Finding>* findings) {
  const double waits = job.median_of(&RankShare::runnable);
  if (job.worth(waits) && waits > kShortOfCpu * job.iteration) {
    findings->push_back(
        {Cause::kNoCpu, Confidence::kLikely, waits, kAllRanks,
         fmt::format("the median rank is ready to run, without a CPU, for {:.1f} ms of an iteration", waits * 1e3),
         "run fewer threads a host (OMP_NUM_THREADS), or use more cores"});
  }
  for (const HostTimes& host : *job.hosts) {
    if (!lanes_lack_cpu(host)) continue;
    const double of_a_lane = host.seconds * host.lanes;
    const double runnable = *host.lane_runnable / of_a_lane, run = *host.lane_run / of_a_lane;
    const double cost = runnable * job.iteration;
    if (!job.worth(std::min(cost, job.exposed))) continue;
    findings->push_back(
        {Cause::kDaemonNoCpu, runnable > 2 * kShortOfCpu ? Confidence::kSure : Confidence::kLikely,
         std::min(cost, job.exposed), fmt::format("the daemon of host {}", host.host),
         fmt::format("its lanes run for {:.0f} % of the time and are ready to run, without a CPU, for {:.0f} %",
                     100 * run, 100 * runnable),
         "give the daemon a core of its own (cpu in daemon.yaml, CPUAffinity of its service), or a higher weight"});
  }
}

}  // namespace tensorlane::explain
