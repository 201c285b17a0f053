// The planner's numbers against Geryon's: table II, and figure 5's placement.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>

#include "simulator/planner/model.h"
#include "simulator/planner/planner.h"
#include "simulator/planner/report.h"

namespace tensorlane::simulator {
namespace {

using protocol::Pattern;

PlanRequest vgg19(double gbps) {
  PlanRequest r;
  r.workload = workload_of(*find_model("vgg19"), 64, 36.9);
  r.topology = star(8, BitsPerSecond(static_cast<std::uint64_t>(gbps * 1e9)), r.assume.hop);
  r.exchange = Exchange::kPushPull;
  r.pattern = Pattern::kParameterServer;
  return r;
}

double efficiency(const PlanRequest& request, const Policy& policy) {
  std::uint64_t events = 0;
  const Result<PolicyOutcome> outcome = simulate_policy(request, policy, &events);
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  return 100 * outcome->scaling_efficiency;
}

// FC layers bulk, convolutions urgent (Geryon, section III-B): layers 0 to 15 of 19.
Policy policy(const std::string& name) {
  Policy p{name, {}, Pattern::kParameterServer, 1u << 19, 0};
  if (name == "network") p.thresholds = {0.18};
  return p;
}

TEST(GeryonTable2, Vgg19At10Gbps) {
  const PlanRequest request = vgg19(10);
  EXPECT_NEAR(efficiency(request, policy("vanilla")), 26.9, 8);
  EXPECT_NEAR(efficiency(request, policy("sliced")), 79.3, 6);
  EXPECT_NEAR(efficiency(request, policy("network")), 94.6, 2) << "what the overhead was fitted on";
}

TEST(GeryonTable3, Vgg19At40Gbps) {
  const PlanRequest request = vgg19(40);
  EXPECT_NEAR(efficiency(request, policy("sliced")), 85.3, 6);
  EXPECT_NEAR(efficiency(request, policy("network")), 94.8, 6);
}

// An urgent and a bulk parameter of the same size on different servers, and one worker: in the order of end hosts both
// share its link, with network priority the urgent one has it first.
TEST(GeryonFigure5, UrgentFinishesInHalfTheTime) {
  const auto urgent_at = [](bool network) {
    RunOptions options;
    // Servers have room to spare, also for what they keep for each other: the worker's link is where both meet.
    options.topology = star(3, BitsPerSecond(100'000'000'000), microseconds(1));
    options.topology.cables[2].rate = BitsPerSecond(10'000'000'000);
    options.network.discipline = network ? Discipline::kStrict : Discipline::kFifo;
    options.host.window = mib(2);
    JobRun job{.warm_up = 0};
    job.workload.layers = {{"urgent", milliseconds(1), milliseconds(1), {{"w", 25'000'000}}},
                           {"bulk", milliseconds(1), milliseconds(1), {{"w", 25'000'000}}}};
    job.placement = {.exchange = Exchange::kPushPull,
                     .pattern = Pattern::kWholeServer,
                     .slice_elements = 1u << 18,
                     .thresholds = network ? std::vector<double>{0.75} : std::vector<double>{},
                     .servers = {HostIndex(1), HostIndex(0)}};
    job.computing = {HostIndex(2)};
    const Result<RunOutcome> outcome = simulate(options, {job});
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    return static_cast<double>(outcome->jobs[0].pulled[0].value);
  };
  EXPECT_NEAR(urgent_at(true), 80e6, 4e6) << "100 MB at 10 Gbit/s";
  EXPECT_NEAR(urgent_at(true) / urgent_at(false), 0.5, 0.05);
}

TEST(Planner, SaysWhenPrioritiesGainNothing) {
  PlanRequest request = vgg19(10);
  // All compute, hardly any bytes.
  request.workload.layers = {{"a", milliseconds(100), milliseconds(200), {{"w", 1000}}},
                             {"b", milliseconds(100), milliseconds(200), {{"w", 1000}}}};
  request.most_classes = 2;
  const Result<Report> report = make_plan(request);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_FALSE(report->gains);
  EXPECT_EQ(report->recommended.name, "sliced");
  EXPECT_EQ(report->recommended.classes, 1u);
  EXPECT_NE(to_text(std::array{Planned{request, *report}}, nlohmann::json::object()).find("priorities gain nothing"),
            std::string::npos);
}

TEST(Planner, SaysWhenTheNetGainIsNegative) {
  const PlanRequest request = vgg19(10);
  Report report;
  report.policies.resize(1);
  report.policies.front().iteration_s = 1;
  report.net_gain = -0.1;
  report.urgent_wait_before_s = 0.2;
  report.urgent_wait_after_s = 0.1;
  report.bulk_wait_before_s = 0.3;
  report.bulk_wait_after_s = 0.7;
  const std::string text = to_text(std::array{Planned{request, report}}, nlohmann::json::object());
  EXPECT_NE(text.find("net -10.0 % throughput"), std::string::npos) << text;
  EXPECT_NE(text.find("urgent gains 100.0 ms (100.0 instead of 200.0), bulk loses 400.0 ms"), std::string::npos)
      << text;
  EXPECT_NE(text.find("the net gain is negative"), std::string::npos) << text;
}

TEST(Planner, IsTheSameTwice) {
  PlanRequest request = vgg19(40);
  std::uint64_t first = 0, second = 0;
  const Result<PolicyOutcome> a = simulate_policy(request, policy("sliced"), &first);
  const Result<PolicyOutcome> b = simulate_policy(request, policy("sliced"), &second);
  EXPECT_EQ(a->iteration_s, b->iteration_s);
  EXPECT_EQ(first, second);
}

TEST(Planner, TwoJobsShareTheFabric) {
  PlanRequest request = vgg19(10);
  const double alone = efficiency(request, policy("network"));
  request.jobs = 2;
  EXPECT_LT(efficiency(request, policy("network")), alone);
}

// A host has flows to those that its plan needs: in a ring to two, however many there are.
TEST(Flows, AreAsManyAsTheRoutesNeed) {
  const auto most = [](std::uint16_t hosts, Pattern pattern) {
    PlanRequest r = vgg19(100);
    r.topology = star(hosts, BitsPerSecond(100'000'000'000), r.assume.hop);
    r.exchange = Exchange::kAllreduce;
    Policy p = policy("network");
    r.pattern = *(p.pattern = pattern);
    p.slice_elements = 1u << 22;
    std::uint64_t events = 0;
    const Result<PolicyOutcome> outcome = simulate_policy(r, p, &events);
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    return outcome->most_flows;
  };
  EXPECT_EQ(most(8, Pattern::kRing), 2 * 3u);  // two classes and control
  EXPECT_EQ(most(64, Pattern::kRing), 2 * 3u);
  EXPECT_EQ(most(8, Pattern::kParameterServer), 7 * 3u);
}

}  // namespace
}  // namespace tensorlane::simulator
