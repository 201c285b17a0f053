#include "monitor/remedies/predict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/explain/job.h"

namespace tensorlane::remedies {
namespace {

using explain::Cause;
using explain::Explanation;
using explain::HostTimes;
using explain::test::MadeUpJob;

std::vector<HostTimes> times_of(const MadeUpJob& job) {
  std::vector<HostTimes> hosts;
  for (const auto& [before, after] : job.reports()) {
    const Result<HostTimes> times = explain::difference(before, after);
    EXPECT_TRUE(times.ok()) << times.status().to_string();
    if (times.ok()) hosts.push_back(*times);
  }
  return hosts;
}

// What a made-up job's explanation says of itself and of what would help with a cause.
struct Asked {
  Explanation all;
  Predictions predictions;

  const Prediction* of(Cause cause) const {
    for (std::size_t i = 0; i < all.findings.size(); ++i) {
      if (all.findings[i].cause == cause && predictions.findings[i]) return &*predictions.findings[i];
    }
    return nullptr;
  }
};

Asked asked(const MadeUpJob& job) {
  const std::vector<HostTimes> hosts = times_of(job);
  const auto all = explain::explain(hosts);
  EXPECT_TRUE(all.ok()) << all.status().to_string();
  Asked asked{*all, predict(hosts, *all)};
  EXPECT_EQ(asked.predictions.findings.size(), asked.all.findings.size());
  return asked;
}

// 340,000 bytes at 100 Mbit/s take 27.2 ms, and computation 10 ms.
TEST(Predict, AFullLinkThatIsTwiceAsFast) {
  const Asked job = asked(MadeUpJob(4));
  ASSERT_TRUE(job.predictions.simulated);
  EXPECT_NEAR(*job.predictions.simulated, job.all.iteration, 0.2 * job.all.iteration);
  const Prediction* would = job.of(Cause::kFullLink);
  ASSERT_NE(would, nullptr);
  EXPECT_EQ(would->change, "links twice as fast");
  // Half of the wait of 30 ms goes.
  EXPECT_NEAR(would->iteration, job.all.iteration - 0.015, 0.005);
}

TEST(Predict, ComputationThatIsTwiceAsFast) {
  MadeUpJob job(4);
  job.bytes = 4000;
  job.communication = 0.0005;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kComputation);
  ASSERT_NE(would, nullptr);
  EXPECT_NEAR(would->iteration, said.all.iteration / 2, 0.1 * said.all.iteration);
}

TEST(Predict, ARankThatIsSlowNoMore) {
  MadeUpJob job(4);
  job.hosts[2].rank.compute = 0.05;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kSlowComputing);
  ASSERT_NE(would, nullptr);
  EXPECT_NEAR(would->iteration, 0.040, 0.008);
  EXPECT_EQ(would->change, "these ranks no slower than the others");
}

TEST(Predict, ALinkWithoutOthersBytes) {
  MadeUpJob job(4);
  job.bytes /= 2;
  job.communication = 0.055;
  for (auto& host : job.hosts) host.foreign_sent = host.foreign_received = 0.5;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kForeignBulk);
  ASSERT_NE(would, nullptr);
  EXPECT_LT(would->iteration, 0.9 * said.all.iteration);
}

TEST(Predict, ASlowLinkAtItsSpeed) {
  MadeUpJob job(4);
  job.communication = 0.110;
  for (std::size_t h : {1, 2}) {  // the path to host h2, and from it
    job.hosts[h].urgent.rate = 0.25;
    job.hosts[h].urgent.rtt = job.hosts[h].bulk.rtt = 0.02;
  }
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kSlowLink);
  ASSERT_NE(would, nullptr);
  EXPECT_NEAR(would->iteration, 0.040, 0.015);
}

TEST(Predict, ANetworkThatHonoursTheClasses) {
  MadeUpJob job(4);
  job.communication = 0.070;
  for (auto& host : job.hosts) {
    host.foreign_sent = host.foreign_received = 0.5;
    host.urgent = {.rate = 0.25, .rtt = 0.015, .min_rtt = 0.0003};
  }
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kNoPriority);
  ASSERT_NE(would, nullptr);
  EXPECT_EQ(would->change, "a network that honours the classes");
  EXPECT_LT(would->iteration, said.all.iteration - 0.001);
}

// Each class is simulated with the operations that it has: what others send holds up the one that is bulk, and not the
// one that is urgent. So it costs less where the urgent one has the bytes.
TEST(Predict, EveryClassHasItsOwnOperations) {
  const auto simulated = [](double urgent) {
    MadeUpJob job(4);
    job.operations = 1;  // in each class
    job.urgent = urgent;
    job.communication = 0.050;
    for (auto& host : job.hosts) host.foreign_sent = host.foreign_received = 0.5;
    const Asked said = asked(job);
    EXPECT_GT(said.all.findings.front().amount, 0.4) << "no bulk of others was found";
    return said.predictions.simulated.value_or(0);
  };
  const double urgent = simulated(0.97), bulk = simulated(0.03);
  EXPECT_GT(bulk, 0.064) << "10 ms of computation and 54 ms of bytes at half the speed";
  EXPECT_LT(urgent, bulk);
}

// A host's rails add up, and the slowest host counts.
TEST(Predict, OfUnlikeLinksTheSlowestHostsCount) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  const auto all = explain::explain(hosts);
  ASSERT_TRUE(all.ok());
  const std::optional<double> alike = predict(hosts, *all).simulated;
  ASSERT_TRUE(alike);
  *hosts[1].rails[0].speed *= 10;
  for (HostTimes& host : hosts) {
    host.rails.resize(2, host.rails[0]);
    for (auto& rail : host.rails) *rail.speed /= 2;
  }
  EXPECT_EQ(predict(hosts, *all).simulated, alike);
}

// The ranks of a host share its link, and what they do among themselves takes time, too.
TEST(Predict, EveryRankOfAHostCounts) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  const auto all = explain::explain(hosts);
  ASSERT_TRUE(all.ok());
  const std::optional<double> one = predict(hosts, *all).simulated;
  for (HostTimes& host : hosts) host.ranks.resize(8, host.ranks[0]);
  const std::optional<double> eight = predict(hosts, *all).simulated;
  ASSERT_TRUE(one && eight);
  EXPECT_GT(*eight, *one);
}

// Computation hides more of what is sent when what is needed first comes first.
TEST(Predict, TensorsInTheOrderInWhichTheyAreNeeded) {
  MadeUpJob job(4);
  job.urgent = 0;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kOrdering);
  ASSERT_NE(would, nullptr);
  EXPECT_LT(would->iteration, said.all.iteration);
  EXPECT_GT(would->iteration, said.all.iteration - 0.011);
}

// Of two slow ranks with causes of their own, each would leave the other.
TEST(Predict, OneOfTwoSlowRanks) {
  MadeUpJob job(5);
  job.hosts[1].rank.compute = 0.05;
  job.hosts[3].rank.input = 0.08;
  const Asked said = asked(job);
  const Prediction *computing = said.of(Cause::kSlowComputing), *input = said.of(Cause::kSlowInput);
  ASSERT_NE(computing, nullptr);
  ASSERT_NE(input, nullptr);
  EXPECT_GT(computing->iteration, 0.95 * said.all.iteration) << "it waits for the other one all the same";
  EXPECT_NEAR(input->iteration, said.all.iteration - 0.040, 0.008);
}

TEST(Predict, ProcessorsForAllRanks) {
  MadeUpJob job(4);
  for (auto& host : job.hosts) host.rank.without_cpu = 0.02;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kNoCpu);
  ASSERT_NE(would, nullptr);
  EXPECT_EQ(would->change, "a processor for every rank that is ready");
  EXPECT_NEAR(would->iteration, said.all.iteration - 0.02, 0.005);
}

TEST(Predict, BatchesOfSmallTensors) {
  MadeUpJob job(4);
  job.operations = 200;
  job.bytes = 60'000;
  job.communication = 0.010;
  const Asked said = asked(job);
  const Prediction* would = said.of(Cause::kSmallTensors);
  ASSERT_NE(would, nullptr);
  EXPECT_LT(would->iteration, 0.95 * said.all.iteration);
}

// Where the planner does not come near to what was measured, what it says of changes is worth nothing.
TEST(Predict, NothingOfWhatIsNotReproduced) {
  MadeUpJob job(4);
  job.communication = 0.5;  // links that carry little, and yet all wait
  job.hosts[2].rank.compute = 0.2;
  const Asked said = asked(job);
  ASSERT_TRUE(said.predictions.simulated);
  EXPECT_LT(*said.predictions.simulated, 0.7 * said.all.iteration);
  ASSERT_TRUE(std::ranges::any_of(said.all.findings, [](const auto& f) { return f.cause == Cause::kSlowComputing; }));
  for (const auto& would : said.predictions.findings) EXPECT_FALSE(would);
}

TEST(Predict, NothingOfCausesThatThePlannerDoesNotKnow) {
  MadeUpJob job(4);
  for (auto& host : job.hosts) host.demoted = 0.5;
  const Asked said = asked(job);
  ASSERT_TRUE(std::ranges::any_of(said.all.findings, [](const auto& f) { return f.cause == Cause::kLimit; }));
  EXPECT_EQ(said.of(Cause::kLimit), nullptr);
  EXPECT_NE(said.of(Cause::kFullLink), nullptr);
}

// As long as for a small one: it is simulated smaller.
TEST(Predict, AJobOfManyBytesTakesNoLonger) {
  MadeUpJob job(8);
  job.speed = 1e11;
  job.bytes = 20e9;
  job.communication = 1.7;
  job.hosts[1].rank.compute = 1;
  job.seconds = 60;
  const auto begin = std::chrono::steady_clock::now();
  const Asked said = asked(job);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_TRUE(said.predictions.simulated);
  EXPECT_NEAR(*said.predictions.simulated, said.all.iteration, 0.3 * said.all.iteration);
}

// What one host says of anything: no fault, and no simulation without an end.
TEST(Predict, WhateverAHostSaysIsSurvived) {
  const auto begin = std::chrono::steady_clock::now();
  int explained = 0;
  for (const double value : {0.0, 1.0, 1e3, 1e9, 1e15, 1e18}) {
    for (int what = 0; what < 8; ++what) {
      std::vector<HostTimes> hosts;
      MadeUpJob job(4);
      job.hosts[1].foreign_received = 0.5;
      for (auto [before, after] : job.reports()) {
        if (after["host"] == "h0") {
          const auto more = [&](nlohmann::json& to, const nlohmann::json& from) {
            to = static_cast<std::uint64_t>(from.get<double>() + value);
          };
          nlohmann::json &cls = after["classes"][0], &rail = after["rails"][0], &rank = after["ranks"][0];
          const nlohmann::json &old_cls = before["classes"][0], &old_rail = before["rails"][0];
          if (what == 0) before["rails"][0]["bits_per_second"] = rail["bits_per_second"] = value;
          if (what == 1) more(after["at_ns"], before["at_ns"]);
          if (what == 2) more(cls["sent_bytes"], old_cls["sent_bytes"]);
          if (what == 3) more(cls["operations"], old_cls["operations"]);
          if (what == 4) more(rail["nic_sent_bytes"], old_rail["nic_sent_bytes"]);
          if (what == 5) more(rank["waiter"]["run_ns"], before["ranks"][0]["waiter"]["run_ns"]);
          if (what == 6) more(after["iterations"], before["iterations"]);
          if (what == 7) {
            for (int i = 0; i < 300; ++i) {
              for (nlohmann::json* report : {&before, &after}) {
                (*report)["classes"].push_back((*report)["classes"][1]);
                (*report)["classes"].back()["name"] = "more" + std::to_string(i);
              }
            }
          }
        }
        const auto times = explain::difference(before, after);
        if (times.ok()) hosts.push_back(*times);
      }
      const auto all = explain::explain(hosts);
      if (!all.ok()) continue;
      ++explained;
      for (const auto& would : predict(hosts, *all).findings) {
        if (would) {
          EXPECT_TRUE(std::isfinite(would->iteration));
        }
      }
    }
  }
  EXPECT_GT(explained, 20);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Predict, NothingOfOneHostOrWithoutSpeeds) {
  EXPECT_FALSE(asked(MadeUpJob(1)).predictions.simulated);
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  for (HostTimes& host : hosts) host.rails.clear();
  const auto all = explain::explain(hosts);
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE(predict(hosts, *all).simulated);
}

// Of many hosts a few stand for all, so that it takes no longer.
TEST(Predict, ManyHosts) {
  const Asked job = asked(MadeUpJob(200));
  const Prediction* would = job.of(Cause::kFullLink);
  ASSERT_NE(would, nullptr);
  EXPECT_NEAR(would->iteration, job.all.iteration - 0.015, 0.006);
}

}  // namespace
}  // namespace tensorlane::remedies
