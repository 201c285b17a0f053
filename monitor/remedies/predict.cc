#include "monitor/remedies/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "daemon/engine/batching/slicing.h"
#include "simulator/planner/planner.h"

namespace tensorlane::remedies {
namespace {

using explain::Cause;
using explain::ClassTimes;
using explain::Explanation;
using explain::Finding;
using explain::HostTimes;
using explain::RailTimes;
using explain::RankLag;
using simulator::PlanRequest;

constexpr std::size_t kMostHosts = 8, kMostTensors = 600;  // of all classes
constexpr std::size_t kMostRanks = 64;                     // of a host
constexpr double kMostForeign = 0.9;                       // of a link, that the planner simulates
constexpr std::uint64_t kMostEvents = 2'000'000;           // of a simulation
// What a host may carry in one simulated iteration. Jobs that carry more are simulated smaller, times and bytes alike.
constexpr double kMostBytes = 32 << 20;
// What is beyond is no job.
constexpr double kSlowest = 1e6, kFastest = 1e14;   // bits/s
constexpr double kShortest = 1e-6, kLongest = 1e5;  // seconds of an iteration

// One job to simulate.
struct Scene {
  double computing = 0;  // seconds of an iteration
  double speed = 1;      // of all links, of what the fabric file says
  double slow_link = 1;  // of one host's link, the same
  double foreign = 0;    // of every link, what others send
  bool honoured = true;  // the classes, by switches
  bool ordered = true;   // the tensors, by when they are needed
  bool batches = false;
};

// How a job's iteration is: what cannot be read from its counts.
struct Shape {
  bool overlaps = true;  // tensors are ready while it computes, as gradients are; else all at its end
  Duration wake;         // from an event on a host until its daemon acts on it
};
constexpr std::array<Shape, 6> kShapes{{{true, microseconds(5)},
                                        {false, microseconds(5)},
                                        {true, microseconds(50)},
                                        {false, microseconds(50)},
                                        {true, microseconds(200)},
                                        {false, microseconds(200)}}};

Duration seconds_of(double seconds) {
  return Duration(std::llround(seconds * 1e9));
}

// Tensors of one class.
struct Group {
  std::size_t tensors = 0;
  std::uint64_t elements = 0;  // of each
};

// As many as an iteration has, and as large as they are if each host sends 2 (n - 1) / n of all, as a ring and a
// sharded parameter server do. The most urgent class first. None where there are too many.
std::vector<Group> groups_of(const std::vector<HostTimes>& hosts, double scale) {
  std::vector<Group> groups;
  const auto n = static_cast<double>(hosts.size());
  std::size_t tensors = 0;
  for (std::size_t c = 0; c < std::min(hosts.front().classes.size(), kMaxDataClasses); ++c) {
    double bytes = 0, operations = 0;
    for (const HostTimes& host : hosts) {
      if (c >= host.classes.size() || host.iterations <= 0) continue;
      bytes += host.classes[c].sent_bytes / host.iterations / n;
      operations = std::max(operations, host.classes[c].operations / host.iterations);
    }
    const double all = scale * bytes * n / (2 * (n - 1)) / sizeof(float), count = std::max(std::round(operations), 1.0);
    if (!(all < kMostBytes) || !(count <= kMostTensors)) return {};
    if (all < count) continue;
    groups.push_back({static_cast<std::size_t>(count), static_cast<std::uint64_t>(all / count)});
    tensors += groups.back().tensors;
  }
  return tensors <= kMostTensors ? groups : std::vector<Group>();
}

// Of what a host carries in an iteration, its own bytes and others', so much is simulated.
double scale_of(const std::vector<HostTimes>& hosts, const Scene& scene, double speed, double iteration) {
  double most = scene.foreign * speed / 8 * iteration;
  for (const HostTimes& host : hosts) {
    double bytes = 0;
    for (const ClassTimes& cls : host.classes) bytes += host.iterations > 0 ? cls.sent_bytes / host.iterations : 0;
    most = std::max(most, bytes);
  }
  return most > kMostBytes ? kMostBytes / most : 1;
}

simulator::Workload workload_of(const std::vector<Group>& groups, double computing, bool overlaps) {
  simulator::Workload workload;
  std::size_t tensors = 0;
  for (const Group& group : groups) tensors += group.tensors;
  const double share = overlaps ? computing / static_cast<double>(tensors) : 0;
  for (const Group& group : groups) {
    for (std::size_t i = 0; i < group.tensors; ++i)
      workload.layers.push_back({"", seconds_of(share / 3), seconds_of(share * 2 / 3), {{"", group.elements}}});
  }
  // The backward pass begins at the last layer, whose gradient is the first one.
  if (!overlaps) workload.layers.back().backward = seconds_of(computing);
  return workload;
}

// Between the urgencies of the last tensor of a class and the first one of the next.
std::vector<double> thresholds_of(const std::vector<Group>& groups, std::size_t layers) {
  std::vector<double> thresholds;
  double before = 0;
  for (std::size_t c = 0; c + 1 < groups.size(); ++c) {
    before += static_cast<double>(groups[c].tensors);
    thresholds.push_back(1 - (before - 0.5) / static_cast<double>(layers));
  }
  return thresholds;
}

// The slowest link of the fabric file; 0 where no host says.
double speed_of(const std::vector<HostTimes>& hosts) {
  double speed = 0;
  for (const HostTimes& host : hosts) {
    double rails = 0;
    for (const RailTimes& rail : host.rails) rails += rail.speed.value_or(0);
    if (rails > 0) speed = speed == 0 ? rails : std::min(speed, rails);
  }
  return speed;
}

class Planner {
 public:
  Planner(const std::vector<HostTimes>& hosts, const Explanation& all, const Scene& now)
      : hosts_(std::min(hosts.size(), kMostHosts)), speed_(speed_of(hosts)) {
    const bool possible = speed_ >= kSlowest && speed_ <= kFastest && all.iteration >= kShortest &&
                          all.iteration <= kLongest && now.computing <= 2 * all.iteration;
    if (hosts.size() < 2 || !possible) return;
    scale_ = scale_of(hosts, now, speed_, all.iteration);
    groups_ = groups_of(hosts, scale_);
    for (const HostTimes& host : hosts) ranks_ = std::clamp(host.ranks.size(), ranks_, kMostRanks);
  }

  bool knows() const { return !groups_.empty(); }

  // Seconds of an iteration; none where it cannot be simulated.
  std::optional<double> iteration(const Scene& scene, const Shape& shape) const {
    PlanRequest request;
    request.workload = workload_of(groups_, scale_ * scene.computing, shape.overlaps);
    const BitsPerSecond rate(static_cast<std::uint64_t>(speed_ * scene.speed));
    request.assume.overhead_share = 0;  // what was measured as computation has all of it
    request.assume.wake = shape.wake;
    request.topology = simulator::star(static_cast<std::uint16_t>(hosts_), rate, request.assume.hop);
    request.topology.cables.front().rate =
        BitsPerSecond(static_cast<std::uint64_t>(speed_ * scene.speed * scene.slow_link));
    request.ranks_per_host = static_cast<std::uint32_t>(ranks_);
    request.congestion.foreign_load = std::min(scene.foreign, kMostForeign);
    request.most_events = kMostEvents;
    std::vector<double> thresholds = thresholds_of(groups_, request.workload.layers.size());
    if (scene.ordered && thresholds.empty()) thresholds = {0.5};
    const simulator::Policy policy{.name = !scene.ordered   ? "sliced"
                                           : scene.honoured ? "network"
                                                            : "endhost",
                                   .thresholds = std::move(thresholds),
                                   .slice_elements = engine::default_slice_elements(Dtype::kFloat32, rate),
                                   .batch = scene.batches ? simulator::network_model(request).threshold() : Bytes()};
    std::uint64_t events = 0;
    const auto outcome = simulator::simulate_policy(request, policy, &events);
    if (!outcome.ok()) return std::nullopt;
    return outcome->iteration_s / scale_;
  }

 private:
  std::size_t hosts_, ranks_ = 1;
  double speed_, scale_ = 1;
  std::vector<Group> groups_;
};

Scene scene_of(const Explanation& all) {
  Scene scene;
  for (const RankLag& rank : all.ranks) scene.computing = std::max(scene.computing, rank.computing.value_or(0));
  for (const Finding& finding : all.findings) {
    if (finding.cause == Cause::kSlowLink) scene.slow_link = std::clamp(finding.amount, 0.01, 1.0);
    if (finding.cause == Cause::kForeignBulk) scene.foreign = std::max(scene.foreign, finding.amount);
    if (finding.cause == Cause::kNoPriority) scene.honoured = false;
    if (finding.cause == Cause::kOrdering) scene.ordered = false;
  }
  return scene;
}

// How long the slowest rank computes where those that the finding names do so much shorter, but not shorter than the
// usual rank.
double computing_without(const Finding& finding, const Explanation& all, double usual) {
  double longest = 0;
  for (const RankLag& rank : all.ranks) {
    const std::string name = explain::rank_name(rank.rank, rank.host);
    const bool named = std::ranges::find(finding.places, name) != finding.places.end();
    const double computing = rank.computing.value_or(0);
    const double less = std::max(computing - finding.seconds, std::min(usual, computing));
    longest = std::max(longest, named ? less : computing);
  }
  return longest;
}

double usual_computing(const Explanation& all) {
  std::vector<double> times;
  for (const RankLag& rank : all.ranks) times.push_back(rank.computing.value_or(0));
  return explain::median(std::move(times));
}

// The scene without the cause, and in words what is different; none where the planner does not know it.
std::optional<std::pair<Scene, const char*>> without(const Finding& finding, const Explanation& all, Scene scene) {
  switch (finding.cause) {
    case Cause::kComputation:
      scene.computing /= 2;
      return std::pair(scene, "all ranks computing twice as fast");
    case Cause::kSlowComputing:
    case Cause::kSlowInput:
      scene.computing = computing_without(finding, all, usual_computing(all));
      return std::pair(scene, "these ranks no slower than the others");
    case Cause::kNoCpu:
      // All ranks lack processors, or those that are named.
      scene.computing = finding.places.front() == explain::kAllRanks
                            ? std::max(scene.computing - finding.seconds, 0.0)
                            : computing_without(finding, all, usual_computing(all));
      return std::pair(scene, "a processor for every rank that is ready");
    case Cause::kFullLink:
      scene.speed *= 2;
      return std::pair(scene, "links twice as fast");
    case Cause::kForeignBulk:
      scene.foreign = 0;
      return std::pair(scene, "nothing of others on the link");
    case Cause::kSlowLink:
      scene.slow_link = 1;
      return std::pair(scene, "that link as fast as the fabric file says");
    case Cause::kNoPriority:
      scene.honoured = true;
      return std::pair(scene, "a network that honours the classes");
    case Cause::kOrdering:
      scene.ordered = true;
      return std::pair(scene, "tensors in the order in which they are needed, in two classes");
    case Cause::kSmallTensors:
      scene.batches = true;
      return std::pair(scene, "batches");
    default:
      return std::nullopt;
  }
}

}  // namespace

Predictions predict(const std::vector<HostTimes>& hosts, const Explanation& all) {
  Predictions predictions;
  predictions.findings.resize(all.findings.size());
  if (!all.exposed) return predictions;  // nor is it known how long the ranks compute
  const Scene now = scene_of(all);
  const Planner planner(hosts, all, now);
  if (!planner.knows()) return predictions;
  const auto off = [&](double simulated) { return std::abs(simulated / all.iteration - 1); };
  const Shape* shape = nullptr;
  for (const Shape& one : kShapes) {
    const std::optional<double> simulated = planner.iteration(now, one);
    if (!simulated || (shape != nullptr && off(*simulated) >= off(*predictions.simulated))) continue;
    predictions.simulated = simulated;
    shape = &one;
  }
  if (shape == nullptr || off(*predictions.simulated) > kReproduces) return predictions;
  for (std::size_t i = 0; i < all.findings.size(); ++i) {
    const auto changed = without(all.findings[i], all, now);
    if (!changed) continue;
    const std::optional<double> then = planner.iteration(changed->first, *shape);
    if (then) predictions.findings[i] = {changed->second, all.iteration * *then / *predictions.simulated};
  }
  return predictions;
}

}  // namespace tensorlane::remedies
