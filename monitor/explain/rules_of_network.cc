// What holds the network up, where all ranks wait for it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "monitor/explain/links.h"
#include "monitor/explain/rules.h"

namespace tensorlane::explain {
namespace {

constexpr double kFull = 0.75;  // of a link's speed
constexpr double kHalfFull = 0.4;
constexpr double kForeignShare = 0.3;    // of what a full link carries
constexpr double kUneven = 1.6;          // times what the job has on the usual host's link
constexpr double kMostUneven = 1000;     // where the usual host has nothing there
constexpr double kLost = 0.002;          // of all segments
constexpr double kFewLost = 10;          // segments that are no sign of anything
constexpr double kBusy = 0.05;           // of the time, or a connection says nothing of a path
constexpr double kHeldUp = 0.5;          // of a link's speed: urgent packets that go slower are held up
constexpr double kQueued = 3;            // times the least round trip: there is a queue
constexpr double kQueueSeconds = 0.001;  // that is longer than this

// How full the fullest link of a host is in one direction.
struct Load {
  const HostTimes* host = nullptr;
  bool sends = false;
  double share = 0;       // of its speed
  double foreign = 0;     // of what it carries
  bool bypassed = false;  // LinkTimes::bypassed
  std::string nic;        // with a space before it, where the host has several
  double uneven = 1;      // the job's bytes, of what it has on the usual host's link in that direction
};

double job_bytes(const HostTimes& host, bool sends) {
  double bytes = 0;
  for (const ClassTimes& cls : host.classes) bytes += sends ? cls.sent_bytes : cls.received_bytes;
  return bytes;
}

// The fullest of its links. Of its payload a job has the same share on all links: slices take the rails in turn.
std::optional<Load> fullest_of(const HostTimes& host, bool sends) {
  const std::vector<LinkTimes> links = links_of(host, sends);
  if (links.empty()) return std::nullopt;
  const auto use = [&](const LinkTimes& link) { return use_of(link, host); };
  const LinkTimes& fullest = *std::ranges::max_element(links, {}, use);
  double payload = 0;
  for (const LinkTimes& link : links) payload += link.payload;
  const double part = payload > 0 ? fullest.payload / payload : 1 / static_cast<double>(links.size());
  Load load{&host, sends, use(fullest)};
  if (fullest.bytes > 0) load.foreign = std::max(1 - job_bytes(host, sends) * part * kWire / fullest.bytes, 0.0);
  load.bypassed = fullest.bypassed;
  if (links.size() > 1) load.nic = " " + fullest.nic;
  return load;
}

// Of the hosts of which it is known, the fullest first.
std::vector<Load> loads_of(const Job& job) {
  std::vector<Load> loads;
  for (const HostTimes& host : *job.hosts) {
    for (const bool sends : {true, false}) {
      if (const std::optional<Load> load = fullest_of(host, sends)) loads.push_back(*load);
    }
  }
  for (const bool sends : {true, false}) {
    std::vector<double> bytes;
    for (const HostTimes& host : *job.hosts) bytes.push_back(job_bytes(host, sends));
    const double usual = median(bytes);
    for (Load& load : loads) {
      // Of two hosts neither is the usual one.
      if (load.sends != sends || bytes.size() < 3) continue;
      const double own = job_bytes(*load.host, sends);
      load.uneven = usual > 0 ? own / usual : own > 0 ? kMostUneven : 1;
    }
  }
  std::ranges::sort(loads, std::greater(), &Load::share);
  return loads;
}

// Whose bytes fill a link, and what helps.
struct Filled {
  Cause cause;
  const char* help;
};

Filled filled_by(const Load& load) {
  if (load.foreign > kForeignShare)
    return {Cause::kForeignBulk,
            "see who sends it (tensorlane top, the switch's counters); mark it as a lower class, or limit it"};
  if (load.uneven > kUneven)
    return {
        Cause::kPattern,
        "a pattern that loads all links alike (pattern: auto in daemon.yaml of the host of rank 0), more servers, or "
        "other roots of broadcasts and reductions"};
  return {Cause::kFullLink, "a faster link, fewer bytes (wire_dtype, another pattern), or more computation beside it"};
}

bool find_full_links(const Job& job, const std::vector<Load>& loads, std::vector<Finding>* findings) {
  bool found = false;
  for (const Load& load : loads) {
    // Or what it carries takes as long as all ranks wait.
    const bool explains = load.share > kHalfFull && load.share * job.iteration > 0.8 * job.exposed;
    if (load.share < kFull && !explains) break;
    const Filled filled = filled_by(load);
    std::string evidence =
        fmt::format("its NIC{} carries {:.0f} % of the link's speed, {:.0f} % of that not this job's", load.nic,
                    100 * load.share, 100 * load.foreign);
    if (load.bypassed) evidence += " (as the daemon counts: the kernel does not see what it sends, nor what others do)";
    if (filled.cause == Cause::kPattern)
      evidence +=
          load.uneven < kMostUneven
              ? fmt::format("; the job has {:.1f} times as many bytes there as on the usual host's link", load.uneven)
              : "; the job has nothing on the usual host's link";
    findings->push_back({filled.cause, load.share > 0.85 ? Confidence::kSure : Confidence::kLikely, job.exposed,
                         fmt::format("the link {} host {}", load.sends ? "from" : "to", load.host->host), evidence,
                         filled.help});
    if (filled.cause == Cause::kForeignBulk) findings->back().amount = load.share * load.foreign;
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
  // Of the link, in bits/s; none where the fabric file does not say.
  std::optional<double> speed() const {
    return connection->rail < from->rails.size() ? from->rails[connection->rail].speed : std::nullopt;
  }
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

using Pair = std::pair<std::string, std::string>;

std::string name_of(const Pair& pair) {
  return fmt::format("the path {} -> {}", pair.first, pair.second);
}

std::map<Pair, std::vector<PathTimes>> by_pair(const std::vector<PathTimes>& paths) {
  std::map<Pair, std::vector<PathTimes>> pairs;
  for (const PathTimes& path : paths) pairs[{path.from->host, path.connection->peer}].push_back(path);
  return pairs;
}

// How fast the most urgent class goes on a path while it has something on its way, of the speed of the link.
std::optional<double> urgent_share(const Job& job, const std::vector<PathTimes>& classes) {
  const std::string& urgent = job.hosts->front().classes.front().name;
  for (const PathTimes& path : classes) {
    const std::optional<double> speed = path.speed();
    const bool long_enough = path.connection->busy > kBusy * path.from->seconds;
    if (path.connection->cls != urgent || !long_enough || !speed) continue;
    return path.rate() / *speed;
  }
  return std::nullopt;
}

// Packets between two hosts are lost whatever their class. A queue that overflows loses those of its class.
void find_losses(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  for (const auto& [pair, classes] : by_pair(paths)) {
    double resent = 0, segments = 0;
    int lossy = 0, clean = 0;
    bool all_queued = true;
    for (const PathTimes& path : classes) {
      const Connection& c = *path.connection;
      resent += c.resent;
      segments += c.segments;
      const bool loses = c.resent >= kFewLost && c.resent > kLost * c.segments;
      all_queued = all_queued && (!loses || path.queued());
      lossy += loses ? 1 : 0;
      clean += !loses && c.segments > 2 * kFewLost / kLost ? 1 : 0;  // fewer packets say nothing
    }
    // A queue that overflows: of one class, or of a link that is slower than the hosts know.
    const bool overflows = all_queued && (lossy == 1 || urgent_share(job, classes).value_or(1) < kHeldUp);
    if (lossy == 0 || clean > 0 || overflows) continue;
    // What nobody reads the kernel has to drop where it has no room left.
    const auto to = std::ranges::find(*job.hosts, pair.second, &HostTimes::host);
    const bool unread = to != job.hosts->end() && lanes_lack_cpu(*to);
    findings->push_back({Cause::kLossyPath, lossy > 1 && !unread ? Confidence::kSure : Confidence::kPossible,
                         job.exposed, name_of(pair),
                         fmt::format("{:.2f} % of its segments were sent again{}", 100 * resent / segments,
                                     unread ? ", which may be because the daemon there lacks a CPU to read them" : ""),
                         "look at the counters of errors and drops of the ports on the way, and at cables and optics"});
  }
}

// Others fill a link, and urgent packets do not pass theirs.
void find_no_priority(const Job& job, const std::vector<Load>& loads, const std::vector<PathTimes>& paths,
                      std::vector<Finding>* findings) {
  if (job.hosts->front().classes.size() < 2) return;
  for (const Load& load : loads) {
    if (load.share < kFull || load.foreign < kForeignShare) continue;
    for (const auto& [pair, classes] : by_pair(paths)) {
      const bool over_it = load.sends ? pair.first == load.host->host : pair.second == load.host->host;
      const std::optional<double> share = over_it ? urgent_share(job, classes) : std::nullopt;
      if (!share || *share > kHeldUp) continue;
      findings->push_back({Cause::kNoPriority, *share < 0.7 * kHeldUp ? Confidence::kSure : Confidence::kLikely,
                           job.exposed, name_of(pair),
                           fmt::format("class {} goes at {:.0f} % of the link's speed beside others' bulk",
                                       job.hosts->front().classes.front().name, 100 * *share),
                           "tensorlane verify finds the port that does not serve the classes; tensorlane-switch writes "
                           "its configuration"});
    }
  }
}

void find_limits(const Job& job, std::vector<Finding>* findings) {
  for (const HostTimes& host : *job.hosts) {
    for (const ClassTimes& cls : host.classes) {
      const double all = cls.sent_bytes + cls.demoted_bytes;
      if (cls.demoted_bytes < 0.05 * all || all == 0) continue;
      findings->push_back({Cause::kLimit, Confidence::kSure, job.exposed,
                           fmt::format("class {} on host {}", cls.name, host.host),
                           fmt::format("{:.0f} % of its bytes were demoted{}", 100 * cls.demoted_bytes / all,
                                       cls.limit ? fmt::format(": its limit is {:.0f} Mbit/s", *cls.limit * 1e-6) : ""),
                           "raise job_limits in daemon.yaml of that host, or give fewer tensors that urgency"});
    }
  }
}

void find_small_tensors(const Job& job, std::optional<double> fullest, std::vector<Finding>* findings) {
  constexpr double kMany = 30, kSmall = 32 << 10, kTiny = 8 << 10, kIdleLink = 0.3;
  double operations = 0, bytes = 0, batched = 0;
  const HostTimes& host = job.hosts->front();
  for (const ClassTimes& cls : host.classes) {
    operations += cls.operations / host.iterations;
    bytes += cls.sent_bytes / host.iterations;
  }
  batched = host.batched_operations / host.iterations;
  const double mean = bytes / std::max(operations, 1.0);
  if (operations < kMany || mean > kSmall || batched > operations) return;
  if (fullest.value_or(0) > (mean < kTiny ? kFull : kIdleLink)) return;
  findings->push_back(
      {Cause::kSmallTensors, fullest ? Confidence::kLikely : Confidence::kPossible, job.exposed, "the job's tensors",
       fmt::format("{:.0f} operations of {:.1f} KiB in an iteration, and no batches of them", operations, mean / 1024),
       "set batch: auto in daemon.yaml of the host of rank 0"});
}

// What the network holds up is all of one class, so that nothing of it can overtake the rest. At most the computation
// that runs meanwhile hides it.
void find_ordering(const Job& job, std::vector<Finding>* findings) {
  constexpr double kAlike = 0.98, kFew = 4;
  const HostTimes& first = job.hosts->front();
  double operations = 0, all = 0, demoted = 0;
  for (const ClassTimes& cls : first.classes) operations += cls.operations / first.iterations;
  std::map<std::string, double> bytes;
  for (const HostTimes& host : *job.hosts) {
    for (const ClassTimes& cls : host.classes) {
      bytes[cls.name] += cls.sent_bytes;
      all += cls.sent_bytes;
      demoted += cls.demoted_bytes;
    }
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& cls) { return cls.second; });
  const double hidden = std::min(job.exposed, job.iteration - job.exposed);
  if (bytes.size() < 2 || demoted > 0 || operations < kFew || !job.worth(hidden)) return;
  if (most->second < kAlike * all) return;
  findings->push_back(
      {Cause::kOrdering, Confidence::kPossible, hidden, "the job's tensors",
       fmt::format("{:.0f} % of its bytes, in {:.0f} operations of an iteration, are in class {}: to the network they "
                   "are alike",
                   100 * most->second / all, operations, most->first),
       "let tensors that are needed first be more urgent (the program's priorities, or urgency: observed in "
       "daemon.yaml "
       "of all hosts), with thresholds between them (search_thresholds)"});
}

// A class waits for its window, its connections have no queue, and are slow.
void find_small_windows(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  for (const PathTimes& path : paths) {
    const std::vector<ClassTimes>& classes = path.from->classes;
    const auto cls = std::ranges::find(classes, path.connection->cls, &ClassTimes::name);
    const std::optional<double> speed = path.speed();
    if (cls == classes.end() || !speed || path.queued() || path.connection->busy < kBusy * path.from->seconds) continue;
    const double needed = *speed / 8 * path.connection->rtt;  // what the path holds
    const bool waits = cls->window_stalls > cls->sends && cls->sends > 0;
    if (!waits || cls->window_bytes > needed || path.rate() > kHeldUp * *speed) continue;
    findings->push_back(
        {Cause::kSmallWindow, Confidence::kSure, job.exposed,
         fmt::format("class {} on host {}", cls->name, path.from->host),
         fmt::format("its window of {:.0f} KiB is full at every send, and the path to {} holds {:.0f} KiB ({:.1f} ms)",
                     cls->window_bytes / 1024, path.connection->peer, needed / 1024, path.connection->rtt * 1e3),
         fmt::format("raise the window of the class in the fabric file to {:.0f} KiB", 2 * needed / 1024)});
  }
}

void find_staging(const Job& job, std::vector<Finding>* findings) {
  for (const HostTimes& host : *job.hosts) {
    if (host.staging_share < 0.8) continue;
    findings->push_back({Cause::kStaging, Confidence::kPossible, job.exposed, fmt::format("host {}", host.host),
                         fmt::format("{:.0f} % of its staging is in use", 100 * host.staging_share),
                         "raise staging in daemon.yaml of that host"});
  }
}

// Urgent packets are held up on the paths of one host, where its NIC carries little.
void find_slow_links(const Job& job, const std::vector<PathTimes>& paths, std::vector<Finding>* findings) {
  struct Seen {
    int slow = 0, all = 0;
    double rate = 0;
  };
  std::map<std::string, Seen> hosts;
  int slow = 0;
  for (const auto& [pair, classes] : by_pair(paths)) {
    const std::optional<double> share = urgent_share(job, classes);
    const bool queued = std::ranges::any_of(classes, [](const PathTimes& path) { return path.queued(); });
    const bool held_up = share && *share < kHeldUp && queued;
    slow += held_up ? 1 : 0;
    for (const std::string& host : {pair.first, pair.second}) {
      ++hosts[host].all;
      hosts[host].slow += held_up ? 1 : 0;
      if (held_up) hosts[host].rate = std::max(hosts[host].rate, *share);
    }
  }
  for (const auto& [host, seen] : hosts) {
    // All of its paths, and nobody else's.
    if (slow == 0 || seen.slow < slow || seen.slow < seen.all) continue;
    findings->push_back(
        {Cause::kSlowLink, Confidence::kLikely, job.exposed, fmt::format("the link of host {}", host),
         fmt::format("no path of it goes at more than {:.0f} % of the speed in the fabric file, though others do",
                     100 * seen.rate),
         "see which speed the link has come up with (ethtool), and what `tensorlane calibrate` measures"});
    findings->back().amount = seen.rate;
  }
}

}  // namespace

void find_network_causes(const Job& job, std::vector<Finding>* findings) {
  const std::size_t before = findings->size();
  const std::vector<Load> loads = loads_of(job);
  const std::vector<PathTimes> paths = paths_of(job);
  const std::optional<double> fullest = loads.empty() ? std::nullopt : std::optional(loads.front().share);
  find_limits(job, findings);
  find_losses(job, paths, findings);
  find_no_priority(job, loads, paths, findings);
  const bool full = find_full_links(job, loads, findings);
  if (!full) find_slow_links(job, paths, findings);
  if (!full) find_small_windows(job, paths, findings);
  if (full) find_ordering(job, findings);
  find_small_tensors(job, fullest, findings);
  find_staging(job, findings);
  if (findings->size() > before || job.stream_waits > 0) return;
  findings->push_back(
      {Cause::kNetwork, Confidence::kPossible, job.exposed, "the network, or the daemons",
       fmt::format("the rank that waits least waits for tensors for {:.1f} ms of an iteration; {}", job.exposed * 1e3,
                   fullest ? fmt::format("the fullest link carries {:.0f} % of its speed", 100 * *fullest)
                           : "how full the links are is not known"),
       "tensorlane verify, tensorlane bench and a timeline say more"});
}

}  // namespace tensorlane::explain
