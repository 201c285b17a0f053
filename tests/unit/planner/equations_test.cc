// Geryon's equations 1 to 5 against the simulator with the real engine: a chain of layers, one server, one worker.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "simulator/clock/random.h"
#include "simulator/planner/run.h"

namespace tensorlane::simulator {
namespace {

constexpr BitsPerSecond kRate{10'000'000'000};

// When the parameters of each layer are pulled, and its gradients pushed, from the beginning of the iteration.
struct ChainTimes {
  std::vector<Duration> pulled;  // t_p, equation 1
  std::vector<Duration> pushed;  // t_bf, equation 4
  Duration iteration;            // tau_iter, equation 5: the first layer's gradients are pushed
};

// Geryon, section II-C. The paper prints t_bf = t_ff + tau_g for the last layer; that pushes its gradients before they
// are computed, against the paper's own prerequisite and equation 3. Here it is t_b + tau_g.
ChainTimes chain_times(const std::vector<Layer>& layers, const std::vector<std::uint32_t>& pull_order) {
  const auto transfer = [&](std::size_t l) {  // equation 6
    const std::uint64_t bytes = layers[l].variables[0].elements * sizeof(float);
    return Duration(std::llround(static_cast<double>(bytes) * 8e9 / static_cast<double>(kRate.value)));
  };
  ChainTimes t{std::vector<Duration>(layers.size()), std::vector<Duration>(layers.size()), {}};
  std::vector<Duration> computed(layers.size());  // t_b
  Duration now;
  for (const std::uint32_t l : pull_order) t.pulled[l] = now += transfer(l);
  now = Duration(0);
  for (std::size_t l = 0; l < layers.size(); ++l) now = std::max(now, t.pulled[l]) + layers[l].forward;  // equation 2
  for (std::size_t l = layers.size(); l-- > 0;) computed[l] = now += layers[l].backward;                 // equation 3
  now = Duration(0);
  for (std::size_t l = layers.size(); l-- > 0;) t.pushed[l] = now = std::max(now, computed[l]) + transfer(l);
  t.iteration = t.pushed[0];
  return t;
}

// The server is host 0, the worker host 1. Nothing but rate and times counts: no delay, no headers, no waking.
JobOutcome simulated(const Workload& workload, PullOrder pulls) {
  RunOptions options;
  options.topology = star(2, kRate, Duration());
  options.network.discipline = Discipline::kFifo;
  options.network.header_bytes = 0;
  options.host.window = mib(64);
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
    const ChainTimes expected = chain_times(workload.layers, order);
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
