// Geryon's equations 1 to 5 against the simulator with the real engine: a chain of layers, one server, one worker.
#include "daemon/engine/urgency/chain_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "simulator/clock/random.h"
#include "simulator/planner/run.h"

namespace tensorlane::simulator {
namespace {

constexpr BitsPerSecond kRate{10'000'000'000};

// The server is host 0, the worker host 1. Nothing but rate and times counts: no delay, no headers, no waking.
JobOutcome simulated(const Workload& workload, PullOrder pulls) {
  RunOptions options;
  options.topology = star(2, kRate, Duration());
  options.network.discipline = Discipline::kFifo;
  options.network.header_bytes = 0;
  options.host.windows.fill(mib(64));
  options.host.sum_bytes_per_second = 1e18;
  JobRun job{.workload = workload, .pulls = pulls, .warm_up = 0, .single_queue = true};
  job.placement = {.exchange = Exchange::kPushPull,
                   .pattern = protocol::Pattern::kWholeServer,
                   .slice_elements = 1u << 20,
                   .servers = {HostIndex(0)}};
  job.computing = {HostIndex(1)};
  const Result<RunOutcome> outcome = simulate(options, {job});
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  return outcome->jobs[0];
}

Workload random_chain(Random& random) {
  Workload w;
  const std::uint64_t layers = 1 + random.below(12);
  for (std::uint64_t l = 0; l < layers; ++l) {
    w.layers.push_back({.name = std::to_string(l),
                        .forward = random.between(microseconds(10), milliseconds(20)),
                        .backward = random.between(microseconds(10), milliseconds(40)),
                        .variables = {{"w", 1 + random.below(4'000'000)}}});
  }
  return w;
}

TEST(GeryonEquations, HoldInTheSimulatorOnChainsOfLayers) {
  Random random(4);
  for (int chain = 0; chain < 60; ++chain) {
    const Workload workload = random_chain(random);
    std::vector<std::uint32_t> order(workload.layers.size());
    std::iota(order.begin(), order.end(), 0);
    const PullOrder pulls = chain % 2 == 0 ? PullOrder::kForward : PullOrder::kReverse;
    if (pulls == PullOrder::kReverse) std::ranges::reverse(order);
    std::vector<engine::ChainLayer> layers;
    for (const Layer& layer : workload.layers) {
      const Duration transfer = engine::chain_transfer_time(Bytes(layer.variables[0].elements * sizeof(float)), kRate);
      layers.push_back({layer.forward, layer.backward, transfer, transfer});
    }
    const engine::ChainTimes expected = engine::chain_times(layers, order);
    const JobOutcome got = simulated(workload, pulls);
    // Rounding: each train is rounded to a nanosecond at both of its ports.
    const auto near =
        static_cast<double>(workload.elements() * 4 / kMaxOperation.value + workload.layers.size()) * 2 + 4;
    for (std::size_t l = 0; l < workload.layers.size(); ++l) {
      EXPECT_NEAR(static_cast<double>(got.pulled[l].value), static_cast<double>(expected.pulled[l].value), near);
      EXPECT_NEAR(static_cast<double>(got.pushed[l].value), static_cast<double>(expected.pushed[l].value), near);
    }
    EXPECT_NEAR(static_cast<double>(got.ends[0].value), static_cast<double>(expected.iteration.value), near);
  }
}

}  // namespace
}  // namespace tensorlane::simulator
