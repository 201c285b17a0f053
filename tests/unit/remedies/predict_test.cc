#include "monitor/remedies/predict.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(would->change, "no rank slower than the others");
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

// Where the planner does not come near to what was measured, what it says of changes is worth nothing.
TEST(Predict, NothingOfWhatIsNotReproduced) {
  MadeUpJob job(4);
  job.communication = 0.5;  // links that carry little, and yet all wait
  const Asked said = asked(job);
  ASSERT_TRUE(said.predictions.simulated);
  EXPECT_LT(*said.predictions.simulated, 0.5 * said.all.iteration);
  for (const auto& would : said.predictions.findings) EXPECT_FALSE(would);
}

TEST(Predict, NothingOfCausesThatThePlannerDoesNotKnow) {
  MadeUpJob job(4);
  for (auto& host : job.hosts) host.demoted = 0.5;
  const Asked said = asked(job);
  EXPECT_EQ(said.of(Cause::kLimit), nullptr);
  EXPECT_NE(said.of(Cause::kFullLink), nullptr);
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
