// The selector's choice against the simulator: every pattern is simulated on hosts around a switch, with the engine and
// its announcements, grants and windows, and the chosen one takes at most a tenth longer than the best.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/pattern/selector.h"
#include "simulator/network/topology.h"
#include "simulator/planner/daemon.h"

namespace tensorlane::simulator {
namespace {

using protocol::Pattern;
using protocol::PlanTensor;

constexpr Duration kHop = microseconds(1), kWake = microseconds(5);
constexpr double kGoodput = 0.913, kSumRate = 5e9;
constexpr Bytes kStaging = mib(64);

struct Bed {
  std::uint16_t hosts = 0;
  BitsPerSecond rate;

  engine::PatternCosts costs() const {
    engine::PatternCosts costs;
    const auto goodput = static_cast<std::uint64_t>(static_cast<double>(rate.value) * kGoodput);
    costs.network = engine::NetworkModel::of(kWake + kHop * 2, BitsPerSecond(goodput));
    costs.message = Duration(0);  // the simulated host's thread takes no time for a message
    costs.sum_bytes_per_second = kSumRate;
    costs.window = fabric::window({}, rate);
    costs.staging = kStaging;
    costs.classes = 1;
    return costs;
  }
  std::uint32_t slice_elements() const { return engine::default_slice_elements(Dtype::kFloat32, rate); }
};

// Seconds from when all hosts have submitted an allreduce until the last has its result, with nothing else going on;
// of the second, which finds credit as the first one left it.
double simulated(const Bed& bed, PlanTensor tensor) {
  tensor.slice_elements = engine::fit_slice_elements(bed.slice_elements(), tensor, bed.hosts, 1, kStaging);
  EventQueue events;
  FabricNetworkOptions network_options;
  network_options.goodput = kGoodput;
  FabricNetwork network(events, star(bed.hosts, bed.rate, kHop), network_options);
  HostOptions options;
  options.window = fabric::window({}, bed.rate);
  options.wake = kWake;
  options.sum_bytes_per_second = kSumRate;
  const protocol::Plan plan{.version = 1, .tensors = {tensor}};
  host::HostConfig config;
  config.classes = 1;
  config.staging = kStaging;
  ports::LaneMetrics metrics;
  std::vector<std::unique_ptr<PlannedDaemon>> hosts;
  Time last;
  std::uint32_t completed = 0;
  for (std::uint16_t h = 0; h < bed.hosts; ++h) {
    hosts.push_back(PlannedDaemon::create(HostIndex(h), {events, network, metrics, bed.hosts}, options, config));
  }
  for (const auto& host : hosts) {
    const Status added = host->add_job(plan, [&](TensorId) {
      last = events.now();
      ++completed;
    });
    EXPECT_TRUE(added.ok()) << added.to_string();
  }
  Time start;
  for (int i = 0; i < 2; ++i) {
    start = events.now();
    for (const auto& host : hosts) host->submit(0, TensorId(0));
    while (events.run_next()) {
    }
  }
  EXPECT_EQ(completed, 2u * bed.hosts);
  return to_seconds(last - start);
}

// Each host serves its peers beginning with the next one. If all began with the same one, all contributions would queue
// in its port first, and this would take a third longer.
TEST(PeersInTurn, KeepEveryPortBusy) {
  const Bed bed{8, BitsPerSecond(10'000'000'000)};
  PlanTensor tensor;
  tensor.operation = Operation::kAllreduce;
  tensor.pattern = Pattern::kParameterServer;
  tensor.elements = mib(1).value / sizeof(float);
  tensor.slice_elements = bed.slice_elements();
  EXPECT_LE(simulated(bed, tensor), 1.05 * to_seconds(engine::predict(bed.costs(), tensor, bed.hosts)));
}

class SelectorInTheSimulator : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(SelectorInTheSimulator, ChoosesWithinATenthOfTheBestPattern) {
  for (const std::uint16_t hosts : {2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64}) {
    const Bed bed{hosts, BitsPerSecond(GetParam())};
    for (std::uint64_t bytes = kib(4).value; bytes <= mib(hosts > 16 ? 4 : 16).value; bytes *= 4) {
      PlanTensor tensor;
      tensor.operation = Operation::kAllreduce;
      tensor.elements = bytes / sizeof(float);
      tensor.slice_elements = bed.slice_elements();
      const auto predictions = engine::compare_patterns(bed.costs(), tensor, hosts);
      double best = 0, chosen = 0;
      for (const engine::Prediction& p : predictions) {
        tensor.pattern = p.pattern;
        const double time = simulated(bed, tensor);
        if (best == 0 || time < best) best = time;
        if (chosen == 0) chosen = time;
      }
      const double predicted = to_seconds(predictions.front().time);
      EXPECT_LE(chosen, 1.1 * best) << bytes << " bytes on " << hosts << " hosts: chose "
                                    << protocol::pattern_name(predictions.front().pattern);
      // And it knows how long that takes.
      EXPECT_LE(predicted, 1.3 * chosen) << bytes << " bytes on " << hosts << " hosts";
      EXPECT_GE(predicted, 0.65 * chosen) << bytes << " bytes on " << hosts << " hosts";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, SelectorInTheSimulator,
                         ::testing::Values(500'000'000ull, 10'000'000'000ull, 100'000'000'000ull));

}  // namespace
}  // namespace tensorlane::simulator
