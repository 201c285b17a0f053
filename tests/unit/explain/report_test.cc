// What is read from two reports of a host, and what is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "monitor/explain/explain.h"
#include "tests/unit/explain/job.h"

namespace tensorlane::explain {
namespace {

using nlohmann::json;
using test::MadeUpJob;
using ::testing::HasSubstr;

TEST(Report, OfTwoRailsOnOneNicEachHasItsOwnPayload) {
  auto [before, after] = MadeUpJob(3).reports()[0];
  for (json* report : {&before, &after}) (*report)["rails"].push_back((*report)["rails"][0]);
  before["rails"][1]["sent_bytes"] = 1000;
  after["rails"][1]["sent_bytes"] = 1500;
  after["rails"][1]["transports"] = {"local", "rdma"};
  const Result<HostTimes> times = difference(before, after);
  ASSERT_TRUE(times.ok()) << times.status().to_string();
  ASSERT_EQ(times->rails.size(), 2u);
  EXPECT_EQ(times->rails[1].sent, 500);
  EXPECT_TRUE(times->rails[1].over_memory);
  EXPECT_FALSE(times->rails[0].over_memory);
}

// The kernel's counts are of a connection, and a flow may go on over a new one.
TEST(Report, OfAFlowThatWasResumedNothingIsMadeUp) {
  auto [before, after] = MadeUpJob(3).reports()[0];
  for (json* report : {&before, &after}) {
    for (json& connection : (*report)["connections"]) connection["path"] = "10.0.0.1:1 -> 10.0.0.2:1";
  }
  EXPECT_EQ(difference(before, after)->connections.size(), 2u);
  json& resumed = after["connections"][0];
  resumed["path"] = "10.0.0.1:2 -> 10.0.0.2:1";
  for (const char* count : {"segments", "resent", "acked_bytes", "busy_ns"}) resumed[count] = 0;
  const Result<HostTimes> times = difference(before, after);
  ASSERT_TRUE(times.ok()) << times.status().to_string();
  EXPECT_EQ(times->connections.size(), 1u);
}

// A program may wait by one thread now and by another one then: their counts say nothing of each other.
TEST(Report, OfTwoThreadsOfARankNoTimeIsMadeUp) {
  const auto reports = MadeUpJob(3).reports();
  const auto waiter_of = [&](const json& thread, double run_ns) {
    json after = reports[0].second;
    json& waiter = after["ranks"][0]["waiter"];
    if (!thread.is_null()) waiter["thread"] = thread;
    waiter["run_ns"] = waiter["run_ns"].get<double>() + run_ns;
    const Result<HostTimes> times = difference(reports[0].first, after);
    EXPECT_TRUE(times.ok()) << times.status().to_string();
    return times.ok() ? times->ranks.at(0) : RankTimes{};
  };
  EXPECT_TRUE(waiter_of(nullptr, 0).run && waiter_of(nullptr, 0).runnable);
  for (const double more : {-1e15, 3.6e12}) {
    EXPECT_FALSE(waiter_of(7, more).run) << "of another thread, which has run for less or for hours";
    EXPECT_FALSE(waiter_of(7, more).runnable);
  }
  EXPECT_FALSE(waiter_of(nullptr, -1e15).run) << "of a thread that took the number of another one";
}

TEST(Report, OfAHostThatLiesIsRefusedOrReadButNeverMore) {
  MadeUpJob job(3);
  const auto [before, after] = job.reports()[0];
  const auto refused = [&](const char* key, const json& value) {
    json lie = after;
    lie[key] = value;
    const Result<HostTimes> times = difference(before, lie);
    return times.ok() ? "read" : times.status().what();
  };
  EXPECT_THAT(refused("iterations", 1), HasSubstr("'iterations' has shrunk"));
  EXPECT_THAT(refused("at_ns", "soon"), HasSubstr("'at_ns' is no number"));
  EXPECT_THAT(refused("at_ns", before["at_ns"]), HasSubstr("no time lies between"));
  EXPECT_THAT(refused("ranks", 7), HasSubstr("'ranks' is no list"));
  EXPECT_THAT(refused("host", std::string(10000, 'x')), HasSubstr("'host' is no text"));
  EXPECT_THAT(refused("classes", json::array({{{"name", "urgent"}}})), HasSubstr("'classes' "));
  EXPECT_THAT(refused("classes", json::array()), HasSubstr("'classes' is empty"));
  EXPECT_THAT(refused("lanes", nullptr), HasSubstr("'lanes' "));
  EXPECT_EQ(refused("connections", "the kernel does not tell"), "read");
  // Anything anywhere.
  std::mt19937_64 random(7);
  const std::vector<json> lies{nullptr, -1, 1e300, "x", json::array(), json::object(), true, json::array({1, 2, 3})};
  const json flat = after.flatten();
  for (int round = 0; round < 2000; ++round) {
    json changed = flat;
    auto at = changed.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random() % flat.size()));
    *at = lies[random() % lies.size()];
    json lie;
    try {
      lie = changed.unflatten();
    } catch (const json::exception&) {
      continue;
    }
    const Result<HostTimes> times = difference(before, lie);
    if (times.ok()) (void)explain({*times});
  }
  EXPECT_FALSE(difference(json(), json()).ok());
}

}  // namespace
}  // namespace tensorlane::explain
