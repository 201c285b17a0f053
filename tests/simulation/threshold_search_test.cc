// The search for thresholds on simulated jobs: as good as trying every one, and cheap.
#include <gtest/gtest.h>

#include <map>

#include "daemon/engine/classify/threshold_search.h"
#include "simulator/planner/model.h"
#include "simulator/planner/planner.h"

namespace tensorlane::simulator {
namespace {

constexpr int kIterations = 100;

struct Case {
  const char* model;
  double batch, rate, gbps;
  protocol::Pattern pattern;
  Exchange exchange;
};

// Iteration times by thresholds; no thresholds: without priorities.
class Simulated {
 public:
  explicit Simulated(const Case& c) {
    request_.workload = workload_of(*find_model(c.model), c.batch, c.rate);
    request_.topology = star(4, BitsPerSecond(static_cast<std::uint64_t>(c.gbps * 1e9)), request_.assume.hop);
    request_.exchange = c.exchange;
    request_.pattern = c.pattern;
  }
  double seconds(const std::vector<double>& thresholds) {
    const auto [found, is_new] = known_.try_emplace(thresholds);
    if (is_new) {
      std::uint64_t events = 0;
      const Policy policy{thresholds.empty() ? "sliced" : "network", thresholds, request_.pattern, 1u << 19, 0};
      found->second = simulate_policy(request_, policy, &events)->iteration_s;
    }
    return found->second;
  }
  std::vector<engine::Weighted> tensors() const {
    std::vector<engine::Weighted> all;
    for (std::size_t l = 0; l < request_.workload.layers.size(); ++l) {
      for (const Variable& v : request_.workload.layers[l].variables)
        all.push_back({urgency_of(request_.workload, l), Bytes(v.elements * sizeof(float))});
    }
    return all;
  }
  // Of all thresholds between two layers, and of none.
  double best() {
    double least = seconds({});
    const std::size_t layers = request_.workload.layers.size();
    for (std::size_t l = 1; l < layers; ++l)
      least = std::min(least, seconds({(urgency_of(request_.workload, l - 1) + urgency_of(request_.workload, l)) / 2}));
    return least;
  }

 private:
  PlanRequest request_;
  std::map<std::vector<double>, double> known_;
};

class SimulatedSearch : public ::testing::TestWithParam<Case> {};

TEST_P(SimulatedSearch, EndsNearTheBestAndCostsLittle) {
  Simulated job(GetParam());
  engine::ThresholdSearch search(job.tensors());
  double all = 0;
  for (int i = 0; i < kIterations; ++i) {
    const double seconds = job.seconds(search.thresholds());
    all += seconds;
    search.observe(seconds);
  }
  EXPECT_FALSE(search.searching());
  const double chosen = job.seconds(search.thresholds()), best = job.best(), single = job.seconds({});
  RecordProperty("single_over_best", std::to_string(single / best));
  RecordProperty("chosen_over_best", std::to_string(chosen / best));
  RecordProperty("trials_share", std::to_string(all / (kIterations * chosen) - 1));
  EXPECT_LE(chosen, 1.05 * best) << "single class " << single << " s, chosen " << chosen << " s, best " << best << " s";
  EXPECT_LE(chosen, 1.02 * single);
  EXPECT_LE(all, 1.05 * kIterations * chosen) << "the search made the first 100 iterations longer";
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, SimulatedSearch,
    ::testing::Values(Case{"vgg19", 64, 36.9, 10, protocol::Pattern::kParameterServer, Exchange::kPushPull},
                      Case{"alexnet", 512, 868, 10, protocol::Pattern::kParameterServer, Exchange::kPushPull},
                      Case{"yolo", 64, 35.7, 10, protocol::Pattern::kParameterServer, Exchange::kPushPull},
                      Case{"vgg16", 32, 200, 25, protocol::Pattern::kRing, Exchange::kAllreduce},
                      // Nothing to gain: hardly anything is sent.
                      Case{"resnet50v1", 64, 10, 100, protocol::Pattern::kRing, Exchange::kAllreduce}));

}  // namespace
}  // namespace tensorlane::simulator
