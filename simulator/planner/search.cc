// What make_plan() recommends: the policies are compared, and from the best of them on one thing after the other is
// changed as long as that is worth it.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/engine/batching/slicing.h"
#include "simulator/planner/planner.h"
#include "simulator/planner/report.h"

namespace tensorlane::simulator {
namespace {

using protocol::Pattern;

constexpr int kCuts = 6;                        // thresholds tried for two classes
constexpr double kWorthIt = 1.005;              // what one more class, or anything else that is changed, must gain
constexpr std::uint32_t kShortestSlice = 4096;  // elements
constexpr Bytes kBucket = mib(25);              // what data parallel training in PyTorch fuses

// Thresholds that put the layers from cuts[i] on behind class i. Cuts ascend, each in [1, layers).
std::vector<double> thresholds_at(const Workload& workload, const std::vector<std::size_t>& cuts) {
  std::vector<double> thresholds;
  for (const std::size_t cut : cuts) {
    // Between two layers, so that no rounding decides.
    thresholds.push_back((urgency_of(workload, cut - 1) + urgency_of(workload, cut)) / 2);
  }
  return thresholds;
}

// The reverse: how many layers are at least as urgent as each threshold.
std::vector<std::size_t> cuts_of(const Workload& workload, const std::vector<double>& thresholds) {
  std::vector<std::size_t> cuts;
  for (const double threshold : thresholds) {
    std::size_t cut = 0;
    while (cut < workload.layers.size() && urgency_of(workload, cut) >= threshold) ++cut;
    cuts.push_back(cut);
  }
  return cuts;
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

// Simulates policies and keeps count and the best of those that are compared.
class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request) {}

  Result<PolicyOutcome> simulate(const Policy& policy) {
    ++simulations_;
    return simulate_policy(request_, policy, &events_);
  }
  Policy policy(const std::string& name) const {
    const std::uint32_t slice = engine::default_slice_elements(Dtype::kFloat32, host_rate(request_.topology));
    return {name, {}, request_.pattern, slice, 0, request_.batch};
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

// From a policy on, one thing at a time; what was tried is kept for the report.
class Climb {
 public:
  Climb(const PlanRequest& request, Search& search, PolicyOutcome start, std::vector<Alternative>* tried)
      : request_(request), search_(search), best_(std::move(start)), tried_(*tried) {}

  Result<PolicyOutcome> run() {
    TL_RETURN_IF_ERROR(patterns());
    TL_RETURN_IF_ERROR(thresholds());
    TL_RETURN_IF_ERROR(slices());
    TL_RETURN_IF_ERROR(batches());
    TL_RETURN_IF_ERROR(depths());
    return best_;
  }

 private:
  Policy like_best() const {
    return {best_.name, best_.thresholds, best_.pattern, best_.slice_elements, best_.depth, best_.batch};
  }

  // Whether it is the best now: it must take less than the best one divided by `worth`.
  Result<bool> attempt(const Policy& policy, double worth, std::string what) {
    TL_ASSIGN_OR_RETURN(PolicyOutcome outcome, search_.simulate(policy));
    tried_.push_back({std::move(what), outcome.iteration_s});
    const bool better = outcome.iteration_s * worth < best_.iteration_s;
    if (better) best_ = std::move(outcome);
    return better;
  }

  // Servers are what push and pull need.
  Status patterns() {
    if (request_.exchange != Exchange::kAllreduce) return {};
    std::vector<std::optional<Pattern>> all{std::nullopt};
    all.insert(all.end(), engine::kSelectable.begin(), engine::kSelectable.end());
    for (const std::optional<Pattern> pattern : all) {
      if (pattern == request_.pattern) continue;
      Policy p = like_best();
      p.pattern = pattern;
      TL_ASSIGN_OR_RETURN([[maybe_unused]] const bool better, attempt(p, kWorthIt, "pattern " + pattern_text(pattern)));
    }
    return {};
  }

  // Each threshold some layers up and down, but not past its neighbours.
  Status thresholds() {
    const std::size_t layers = request_.workload.layers.size(), step = std::max<std::size_t>(1, layers / 12);
    for (std::size_t i = 0; i < best_.thresholds.size(); ++i) {
      for (const bool up : {true, false}) {
        std::vector<std::size_t> cuts = cuts_of(request_.workload, best_.thresholds);
        const std::size_t least = i == 0 ? 1 : cuts[i - 1] + 1;
        const std::size_t most = i + 1 == cuts.size() ? layers - 1 : cuts[i + 1] - 1;
        if (up ? cuts[i] + step > most : cuts[i] < least + step) continue;
        cuts[i] = up ? cuts[i] + step : cuts[i] - step;
        Policy p = like_best();
        p.thresholds = thresholds_at(request_.workload, cuts);
        TL_ASSIGN_OR_RETURN([[maybe_unused]] const bool better,
                            attempt(p, kWorthIt, "thresholds" + numbers_text(p.thresholds)));
      }
    }
    return {};
  }

  // What Caramel's depth cuts the largest tensor into (section 4.4); then longer and shorter ones, as long as that is
  // better.
  Status slices() {
    const std::uint64_t largest = request_.workload.largest();
    const std::uint32_t pieces =
        engine::adaptive_depth(Bytes(largest * sizeof(float)), network_model(request_).threshold());
    if (const std::uint64_t elements = largest / pieces; elements >= kShortestSlice && elements <= kLongestSlice) {
      Policy p = like_best();
      p.slice_elements = static_cast<std::uint32_t>(elements) / 16 * 16;
      TL_ASSIGN_OR_RETURN(
          [[maybe_unused]] const bool better,
          attempt(p, kWorthIt,
                  fmt::format("slices of {} elements, {} of the largest tensor", p.slice_elements, pieces)));
    }
    for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
      for (bool better = true; better;) {
        Policy p = like_best();
        const double elements = factor * p.slice_elements;
        if (elements < kShortestSlice || elements > kLongestSlice) break;
        p.slice_elements = static_cast<std::uint32_t>(elements) / 16 * 16;
        TL_ASSIGN_OR_RETURN(better, attempt(p, kWorthIt, fmt::format("slices of {} elements", p.slice_elements)));
      }
    }
    return {};
  }

  // Where the request says nothing: Caramel's threshold and a bucket.
  Status batches() {
    if (request_.batch.value > 0) return {};
    for (const Bytes batch : {network_model(request_).threshold(), kBucket}) {
      Policy p = like_best();
      p.batch = batch;
      TL_ASSIGN_OR_RETURN([[maybe_unused]] const bool better,
                          attempt(p, kWorthIt, fmt::format("batches of {} bytes", batch.value)));
    }
    return {};
  }

  // The smallest that is as good.
  Status depths() {
    const double limit = best_.iteration_s * kWorthIt;
    for (std::uint32_t depth = engine::kDeepest; depth > 0; depth /= 2) {
      Policy p = like_best();
      p.depth = depth;
      TL_ASSIGN_OR_RETURN(PolicyOutcome outcome, search_.simulate(p));
      tried_.push_back({fmt::format("depth {}", depth), outcome.iteration_s});
      if (outcome.iteration_s > limit) break;
      best_ = std::move(outcome);
    }
    return {};
  }

  const PlanRequest& request_;
  Search& search_;
  PolicyOutcome best_;
  std::vector<Alternative>& tried_;
};

// What the best number of classes does to urgent and to bulk, and whether that is worth it.
void compare(const PlanRequest& request, Report* report) {
  const PolicyOutcome sliced = report->policies[1];
  report->recommended = sliced;
  const auto first_network = report->policies.begin() + 3;
  if (first_network == report->policies.end()) return;
  auto best = first_network;
  for (auto p = first_network; p != report->policies.end(); ++p) {
    if (p->iteration_s * kWorthIt < best->iteration_s) best = p;
  }
  report->net_gain = sliced.iteration_s / best->iteration_s - 1;
  report->gain_over_endhost = report->policies[2].iteration_s / best->iteration_s - 1;
  const double threshold = best->thresholds.front();
  report->urgent_wait_before_s = mean_wait(sliced, request.workload, threshold, true);
  report->urgent_wait_after_s = mean_wait(*best, request.workload, threshold, true);
  report->bulk_wait_before_s = mean_wait(sliced, request.workload, threshold, false);
  report->bulk_wait_after_s = mean_wait(*best, request.workload, threshold, false);
  report->gains = sliced.iteration_s > best->iteration_s * kWorthIt;
  if (report->gains) report->recommended = *best;
}

}  // namespace

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
  TL_RETURN_IF_ERROR(try_classes(request, search, &report));
  compare(request, &report);
  Climb climb(request, search, report.recommended, &report.tried);
  TL_ASSIGN_OR_RETURN(report.recommended, climb.run());
  report.simulations = search.simulations();
  report.events = search.events();
  return report;
}

}  // namespace tensorlane::simulator
