// What holds the network up, where all ranks wait for it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "monitor/explain/rules.h"

namespace tensorlane::explain {
namespace {

constexpr double kFull = 0.75;  // of a link's speed
constexpr double kHalfFull = 0.4;
constexpr double kWire = 1.08;           // bytes on the wire for one of payload, about
constexpr double kForeignShare = 0.3;    // of what a full link carries
constexpr double kLost = 0.002;          // of all segments
constexpr double kFewLost = 10;          // segments that are no sign of anything
constexpr double kQueued = 3;            // times the least round trip: there is a queue
constexpr double kQueueSeconds = 0.001;  // that is longer than this

// How full the fullest link of a host is in one direction.
struct Load {
  const HostTimes* host = nullptr;
  bool sends = false;
  double share = 0;    // of its speed
  double foreign = 0;  // of what it carries
};

double job_bytes(const HostTimes& host, bool sends) {
  double bytes = 0;
  for (const ClassTimes& cls : host.classes) bytes += sends ? cls.sent_bytes : cls.received_bytes;
  return bytes;
}

std::vector<Load> loads_of(const Job& job) {
  std::vector<Load> loads;
  for (const HostTimes& host : *job.hosts) {
    for (const bool sends : {true, false}) {
      Load load{&host, sends};
      double carried = 0;
      for (const RailTimes& rail : host.rails) {
        const std::optional<double>& bytes = sends ? rail.nic_sent : rail.nic_received;
        if (!bytes || !rail.speed || *rail.speed <= 0) continue;
        carried += *bytes;
        load.share = std::max(load.share, *bytes * 8 / host.seconds / *rail.speed);
      }
      if (carried > 0) load.foreign = std::max(1 - job_bytes(host, sends) * kWire / carried, 0.0);
      loads.push_back(load);
    }
  }
  std::ranges::sort(loads, std::greater(), &Load::share);
  return loads;
}

// Full links.
bool find_full_links(const Job& job, const std::vector<Load>& loads, std::vector<Finding>* findings) {
  bool found = false;
  for (const Load& load : loads) {
    // Or what it carries takes as long as all ranks wait.
    const bool explains = load.share > kHalfFull && load.share * job.iteration > job.exposed;
    if (load.share < kFull && !explains) break;
    const bool foreign = load.foreign > kForeignShare;
    const std::string where = fmt::format("the link {} host {}", load.sends ? "from" : "to", load.host->host);
    findings->push_back(
        {foreign ? Cause::kForeignBulk : Cause::kFullLink, load.share > 0.85 ? Confidence::kSure : Confidence::kLikely,
         job.exposed, where,
         fmt::format("its NIC carries {:.0f} % of the link's speed, {:.0f} % of that not this job's", 100 * load.share,
                     100 * load.foreign),
         foreign ? "see who sends it (tensorlane top, the switch's counters); mark it as a lower class, or limit it"
                 : "a faster link, fewer bytes (wire_dtype, another pattern), or more computation beside it"});
    found = true;
  }
  return found;
}

struct PathTimes {
  const HostTimes* from;
  const Connection* connection;
  double queue() const { return connection->rtt - connection->min_rtt; }
  bool queued() const { return connection->rtt > kQueued * connection->min_rtt && queue() > kQueueSeconds; }
  double rate() const { return connection->busy > 0 ? connection->acked_bytes * 8 / connection->busy : 0; }
};

std::vector<PathTimes> paths_of(const Job& job) {
  std::vector<PathTimes> paths;
  for (const HostTimes& host : *job.hosts) {
    for (const Connection& connection : host.connections) {
      if (connection.acked_bytes > 0) paths.push_back({&host, &connection});
    }
  }
  return paths;
}

// Packets of some pairs are lost, and not of all.
bool find_losses(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  std::map<std::pair<std::string, std::string>, std::pair<double, double>> pairs;  // resent, segments
  for (const PathTimes& path : paths) {
    auto& [resent, segments] = pairs[{path.from->host, path.connection->peer}];
    resent += path.connection->resent;
    segments += path.connection->segments;
  }
  bool found = false;
  for (const auto& [pair, counts] : pairs) {
    const auto& [resent, segments] = counts;
    const double lost = resent / std::max(segments, 1.0);
    if (resent < kFewLost || lost < kLost) continue;
    findings->push_back({Cause::kLossyPath, lost > 4 * kLost ? Confidence::kSure : Confidence::kLikely, job.exposed,
                         fmt::format("the path {} -> {}", pair.first, pair.second),
                         fmt::format("{:.2f} % of its segments were sent again", 100 * lost),
                         "look at the counters of errors and drops of the ports on the way, and at cables and optics"});
    found = true;
  }
  return found;
}

// Urgent packets wait as long as bulk.
bool find_no_priority(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  std::map<std::pair<std::string, std::string>, std::map<std::string, const PathTimes*>> pairs;
  for (const PathTimes& path : paths) pairs[{path.from->host, path.connection->peer}][path.connection->cls] = &path;
  bool found = false;
  const std::vector<ClassTimes>& classes = job.hosts->front().classes;
  for (const auto& [pair, by_class] : pairs) {
    if (classes.size() < 2) break;
    const auto urgent = by_class.find(classes.front().name), bulk = by_class.find(classes.back().name);
    if (urgent == by_class.end() || bulk == by_class.end()) continue;
    const bool together =
        bulk->second->queued() && urgent->second->queued() && urgent->second->queue() > 0.5 * bulk->second->queue();
    if (!together) continue;
    findings->push_back({Cause::kNoPriority, Confidence::kLikely, job.exposed,
                         fmt::format("the path {} -> {}", pair.first, pair.second),
                         fmt::format("a round trip takes {:.1f} ms in class {} and {:.1f} ms in class {}",
                                     urgent->second->connection->rtt * 1e3, classes.front().name,
                                     bulk->second->connection->rtt * 1e3, classes.back().name),
                         "tensorlane verify finds the port; tensorlane-switch writes its configuration"});
    found = true;
  }
  return found;
}

bool find_limits(const Job& job, std::vector<Finding>* findings) {
  bool found = false;
  for (const HostTimes& host : *job.hosts) {
    for (const ClassTimes& cls : host.classes) {
      const double all = cls.sent_bytes + cls.demoted_bytes;
      if (cls.demoted_bytes < 0.05 * all || all == 0) continue;
      findings->push_back({Cause::kLimit, Confidence::kSure, job.exposed,
                           fmt::format("class {} on host {}", cls.name, host.host),
                           fmt::format("{:.0f} % of its bytes were demoted{}", 100 * cls.demoted_bytes / all,
                                       cls.limit ? fmt::format(": its limit is {:.0f} Mbit/s", *cls.limit * 1e-6) : ""),
                           "raise job_limits in daemon.yaml of that host, or give fewer tensors that urgency"});
      found = true;
    }
  }
  return found;
}

bool find_small_tensors(const Job& job, double fullest, std::vector<Finding>* findings) {
  constexpr double kMany = 30, kSmall = 32 << 10, kIdleLink = 0.3;
  double operations = 0, bytes = 0, batched = 0;
  const HostTimes& host = job.hosts->front();
  for (const ClassTimes& cls : host.classes) {
    operations += cls.operations / host.iterations;
    bytes += cls.sent_bytes / host.iterations;
  }
  batched = host.batched_operations / host.iterations;
  const double mean = bytes / std::max(operations, 1.0);
  if (operations < kMany || mean > kSmall || batched > operations || fullest > kIdleLink) return false;
  findings->push_back(
      {Cause::kSmallTensors, Confidence::kLikely, job.exposed, "the job's tensors",
       fmt::format("{:.0f} operations of {:.1f} KiB in an iteration, and no batches of them", operations, mean / 1024),
       "set batch: auto in daemon.yaml of the host of rank 0"});
  return true;
}

bool find_small_windows(const Job& job, const std::vector<PathTimes>& paths, double fullest,
                        std::vector<Finding>* findings) {
  if (fullest > 0.6) return false;
  for (const HostTimes& host : *job.hosts) {
    for (const ClassTimes& cls : host.classes) {
      if (cls.sends == 0 || cls.window_stalls < 0.3 * cls.sends) continue;
      const auto queued = std::ranges::any_of(paths, [&](const PathTimes& path) {
        return path.from == &host && path.connection->cls == cls.name && path.queued();
      });
      const auto speed = host.rails.empty() ? std::nullopt : host.rails.front().speed;
      const double needed = speed ? *speed / 8 * 0.002 : 0;
      if (queued || cls.window_bytes >= needed) continue;
      findings->push_back(
          {Cause::kSmallWindow, Confidence::kLikely, job.exposed,
           fmt::format("class {} on host {}", cls.name, host.host),
           fmt::format("its window of {:.0f} KiB was full at {:.0f} % of its sends, and the link is not",
                       cls.window_bytes / 1024, 100 * std::min(cls.window_stalls / cls.sends, 1.0)),
           fmt::format("raise the window of the class in the fabric file, to {:.0f} KiB or more", needed / 1024)});
      return true;
    }
  }
  return false;
}

bool find_staging(const Job& job, std::vector<Finding>* findings) {
  for (const HostTimes& host : *job.hosts) {
    if (host.staging_share < 0.8) continue;
    findings->push_back({Cause::kStaging, Confidence::kPossible, job.exposed, fmt::format("host {}", host.host),
                         fmt::format("{:.0f} % of its staging is in use", 100 * host.staging_share),
                         "raise staging in daemon.yaml of that host"});
    return true;
  }
  return false;
}

// Paths of one host have a queue, others none, and its link is not full by the fabric file's speed.
bool find_slow_links(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  struct Host {
    double queued = 0, all = 0, rate = 0;
  };
  std::map<std::string, Host> hosts;
  double queued = 0;
  for (const PathTimes& path : paths) {
    queued += path.queued() ? 1 : 0;
    for (const std::string& host : {path.from->host, path.connection->peer}) {
      hosts[host].all += 1;
      hosts[host].queued += path.queued() ? 1 : 0;
      if (path.queued()) hosts[host].rate = std::max(hosts[host].rate, path.rate());
    }
  }
  if (queued == 0) return false;
  const auto worst = std::ranges::max_element(hosts, {}, [](const auto& h) { return h.second.queued / h.second.all; });
  const Host& host = worst->second;
  // Every queue is on its paths, or nearly so.
  if (host.queued < 0.8 * queued || host.queued < 0.5 * host.all) return false;
  findings->push_back({Cause::kSlowLink, Confidence::kLikely, job.exposed,
                       fmt::format("the link of host {}", worst->first),
                       fmt::format("{:.0f} of the {:.0f} paths with a queue are its own, at {:.0f} Mbit/s", host.queued,
                                   queued, host.rate * 1e-6),
                       "look at the speed that the link has come up with (ethtool), at the ports on the way, and at "
                       "`tensorlane calibrate`"});
  return true;
}

}  // namespace

void find_network_causes(const Job& job, std::vector<Finding>* findings) {
  const std::size_t before = findings->size();
  const std::vector<Load> loads = loads_of(job);
  const std::vector<PathTimes> paths = paths_of(job);
  const double fullest = loads.empty() ? 0 : loads.front().share;
  find_limits(job, findings);
  find_losses(job, paths, findings);
  find_no_priority(job, paths, findings);
  const bool full = find_full_links(job, loads, findings);
  if (!full) find_slow_links(job, paths, findings);
  if (!full) find_small_windows(job, paths, fullest, findings);
  find_small_tensors(job, fullest, findings);
  find_staging(job, findings);
  if (findings->size() > before) return;
  findings->push_back(
      {Cause::kNetwork, Confidence::kPossible, job.exposed, "the network, or the daemons",
       fmt::format(
           "all ranks wait for tensors for {:.1f} ms of an iteration; the fullest link carries {:.0f} % of its speed",
           job.exposed * 1e3, 100 * fullest),
       "tensorlane verify, tensorlane bench and a timeline say more"});
}

}  // namespace tensorlane::explain
