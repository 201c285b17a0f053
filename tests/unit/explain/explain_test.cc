#include "monitor/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/explain/explained.h"

namespace tensorlane::explain {
namespace {

using nlohmann::json;
using test::MadeUpHost;
using test::MadeUpJob;
using ::testing::HasSubstr;

// A cause, how it is put into a job, and what else may be named beside it because it is true, too.
struct Situation {
  Cause cause;
  std::string where;
  std::function<void(MadeUpJob&, double strength)> put;  // strength from 0.5 to 2
  std::vector<Cause> also = {};
};

std::vector<Situation> situations_of_ranks() {
  return {
      {Cause::kComputation, "all ranks",
       [](MadeUpJob& job, double) {
         job.bytes = 4000;
         job.communication = 0.0005;
       }},
      {Cause::kFullLink, "the link from host h0", [](MadeUpJob&, double) {}},
      {Cause::kSlowComputing,
       "rank 2 on host h2",
       [](MadeUpJob& job, double by) { job.hosts[2].rank.compute += 0.025 * by; },
       {Cause::kFullLink}},
      {Cause::kSlowInput,
       "rank 2 on host h2",
       [](MadeUpJob& job, double by) { job.hosts[2].rank.input += 0.025 * by; },
       {Cause::kFullLink}},
      {Cause::kNoCpu,
       "rank 2 on host h2",
       [](MadeUpJob& job, double by) { job.hosts[2].rank.without_cpu += 0.025 * by; },
       {Cause::kFullLink}},
      {Cause::kNoCpu,
       "all ranks",
       [](MadeUpJob& job, double by) {
         for (MadeUpHost& host : job.hosts) host.rank.without_cpu += 0.02 * by;
       },
       {Cause::kFullLink}},
      {Cause::kDaemonNoCpu,
       "the daemon of host h1",
       [](MadeUpJob& job, double by) {
         job.hosts[1].lane_without_cpu = 0.35 + 0.1 * by;
         job.communication *= 2;
       },
       {Cause::kFullLink}},
  };
}

std::vector<Situation> situations_of_the_network() {
  const auto next_of = [](MadeUpJob& job, std::size_t h) -> MadeUpHost& { return job.hosts[h % job.hosts.size()]; };
  return {
      {Cause::kForeignBulk, "the link to host h1",
       [](MadeUpJob& job, double by) {
         job.hosts[1].foreign_received = 0.5 + 0.05 * by;
         job.communication *= 2;
         job.hosts[0].bulk = {.rate = 0.3, .rtt = 0.017, .min_rtt = 0.0003};
       }},
      {Cause::kNoPriority,
       "the path h0 -> h1",
       [](MadeUpJob& job, double by) {
         job.hosts[1].foreign_received = 0.65;
         job.communication *= 3;
         job.hosts[0].bulk = {.rate = 0.2, .rtt = 0.017, .min_rtt = 0.0003};
         job.hosts[0].urgent = {.rate = 0.28 / std::max(by, 0.7), .rtt = 0.015, .min_rtt = 0.0003};
       },
       {Cause::kForeignBulk}},
      {Cause::kSlowLink, "the link of host h2",
       [next_of](MadeUpJob& job, double by) {
         job.communication *= 4;
         next_of(job, 1).urgent = {.rate = 0.22 / by, .rtt = 0.03 * by, .min_rtt = 0.0002};
         next_of(job, 2).urgent = {.rate = 0.22 / by, .rtt = 0.02 * by, .min_rtt = 0.0002};
       }},
      {Cause::kLossyPath,
       "the path h1 -> h2",
       [](MadeUpJob& job, double by) {
         job.communication *= 1.5;
         job.hosts[1].urgent.lost = job.hosts[1].bulk.lost = 0.01 * by;
       },
       {Cause::kFullLink}},
      {Cause::kLimit,
       "class urgent on host h3",
       [](MadeUpJob& job, double by) { job.hosts[3].demoted = 0.3 * by; },
       {Cause::kFullLink}},
      {Cause::kSmallTensors,
       "the job's tensors",
       [](MadeUpJob& job, double by) {
         job.operations = 200 * by;
         job.bytes = 150'000 * by;
         job.communication = 0.03 * by;
       },
       {Cause::kFullLink}},
      {Cause::kSmallWindow, "class urgent on host h0",
       [](MadeUpJob& job, double) {
         job.communication *= 5;
         for (MadeUpHost& host : job.hosts) {
           host.window = 32768;
           host.stalls_per_send = 12;
           host.urgent = host.bulk = {.rate = 0.12, .rtt = 0.0163, .min_rtt = 0.016};
         }
       }},
      {Cause::kStaging,
       "host h1",
       [](MadeUpJob& job, double) {
         job.communication *= 3;
         job.hosts[1].staging = 0.95;
       },
       {Cause::kFullLink}},
  };
}

// Those of ranks first.
std::vector<Situation> situations() {
  std::vector<Situation> all = situations_of_ranks();
  for (Situation& situation : situations_of_the_network()) all.push_back(std::move(situation));
  return all;
}

TEST(Explain, NamesEachCauseAndItsPlaceAndNoOther) {
  std::mt19937_64 random(18);
  std::uniform_real_distribution<double> strength(0.5, 2), noise(0, 0.05);
  std::uniform_int_distribution<std::size_t> count(4, 9);
  for (int round = 0; round < 16; ++round) {
    for (const Situation& situation : situations()) {
      MadeUpJob job(count(random));
      job.seed = random();
      job.noise = noise(random);
      const double by = strength(random);
      situation.put(job, by);
      const Explanation all = explained(job);
      const Finding* found = find(all, situation.cause);
      ASSERT_NE(found, nullptr) << cause_name(situation.cause) << " of strength " << by << ":\n" << text_of(all);
      EXPECT_THAT(found->places, ::testing::Contains(situation.where)) << text_of(all);
      for (const Finding& finding : all.findings) {
        if (finding.cause == situation.cause || finding.confidence == Confidence::kPossible) continue;
        EXPECT_THAT(situation.also, ::testing::Contains(finding.cause))
            << cause_name(situation.cause) << " of strength " << by << ":\n"
            << text_of(all);
      }
    }
  }
}

TEST(Explain, InventsNoCauseWhereNothingIsWrong) {
  std::mt19937_64 random(30);
  std::uniform_real_distribution<double> noise(0, 0.05), compute(0.002, 0.1), part(0.01, 4);
  std::uniform_int_distribution<std::size_t> count(2, 40);
  for (int round = 0; round < 200; ++round) {
    MadeUpJob job(count(random));
    job.seed = random();
    job.noise = noise(random);
    const double computing = compute(random);
    for (MadeUpHost& host : job.hosts) host.rank.compute = computing;
    job.communication = computing * part(random);
    job.bytes = job.communication * job.speed / 8 / 1.08;
    const Explanation all = explained(job);
    for (const Finding& finding : all.findings) {
      EXPECT_TRUE(finding.cause == Cause::kComputation || finding.cause == Cause::kFullLink ||
                  finding.confidence == Confidence::kPossible)
          << "round " << round << ":\n"
          << text_of(all);
    }
  }
}

TEST(Explain, NamesBothOfTwoCausesOrTheLarger) {
  std::mt19937_64 random(60);
  const std::vector<Situation> all_situations = situations();
  for (std::size_t a = 2; a < 7; ++a) {
    for (std::size_t b = 7; b < all_situations.size(); ++b) {
      MadeUpJob job(5);
      job.noise = 0.03;
      job.seed = random();
      all_situations[a].put(job, 1);
      all_situations[b].put(job, 1);
      const Explanation all = explained(job);
      EXPECT_TRUE(find(all, all_situations[a].cause) != nullptr || find(all, all_situations[b].cause) != nullptr)
          << cause_name(all_situations[a].cause) << " and " << cause_name(all_situations[b].cause) << ":\n"
          << text_of(all);
    }
  }
}

// Though what is only possible could cost more.
// Its kernel drops what it has no room for.
TEST(Explain, WhatADaemonWithoutACpuDoesNotReadIsNoCertainLossOfThePath) {
  MadeUpJob job(4);
  job.communication *= 2;
  job.hosts[1].urgent.lost = job.hosts[1].bulk.lost = 0.01;
  const Explanation before = explained(job);
  const Finding* lossy = find(before, Cause::kLossyPath);
  ASSERT_NE(lossy, nullptr) << text_of(before);
  EXPECT_EQ(lossy->confidence, Confidence::kSure);
  job.hosts[2].lane_without_cpu = 0.45;
  const Explanation all = explained(job);
  lossy = find(all, Cause::kLossyPath);
  ASSERT_NE(lossy, nullptr) << text_of(all);
  EXPECT_EQ(lossy->confidence, Confidence::kPossible);
  EXPECT_THAT(lossy->evidence, ::testing::HasSubstr("the daemon there lacks a CPU"));
  EXPECT_NE(find(all, Cause::kDaemonNoCpu), nullptr) << text_of(all);
}

TEST(Explain, TheSurestCauseComesFirstAndOfEquallySureOnesTheDearest) {
  std::mt19937_64 random(5);
  const std::vector<Situation> all_situations = situations();
  bool costs_less = false;
  for (const Situation& first : all_situations) {
    for (const Situation& second : all_situations) {
      MadeUpJob job(5);
      job.seed = random();
      first.put(job, 1);
      second.put(job, 1);
      const Explanation all = explained(job);
      for (std::size_t i = 1; i < all.findings.size(); ++i) {
        const Finding &above = all.findings[i - 1], &below = all.findings[i];
        EXPECT_GE(above.confidence, below.confidence) << text_of(all);
        if (above.confidence == below.confidence) {
          EXPECT_GE(above.seconds, below.seconds) << text_of(all);
        }
        costs_less = costs_less || above.seconds < below.seconds;
      }
    }
  }
  EXPECT_TRUE(costs_less) << "no job shows that sureness counts before time";
}

// All lack processors, and one lacks them for longer: two findings, each with the figures of its own.
TEST(Explain, ARankAndAllRanksAreNotOnePlace) {
  MadeUpJob job(4);
  for (MadeUpHost& host : job.hosts) host.rank.without_cpu = 0.030;
  job.hosts[2].rank.without_cpu = 0.060;
  const Explanation all = explained(job);
  std::vector<std::string> places;
  for (const Finding& finding : all.findings) {
    if (finding.cause != Cause::kNoCpu) continue;
    places.push_back(finding.where);
    EXPECT_THAT(finding.evidence, HasSubstr(finding.where == kAllRanks ? "the median rank" : "70.0 ms"))
        << text_of(all);
  }
  EXPECT_THAT(places, ::testing::UnorderedElementsAre(kAllRanks, "rank 2 on host h2")) << text_of(all);
}

TEST(Explain, ALateRankIsNamedWhateverTheClocksSay) {
  MadeUpJob job(8);
  job.hosts[5].rank.input = 0.050;
  job.seconds = 10 * job.iteration();
  const Explanation before = explained(job);
  ASSERT_FALSE(before.ranks.empty());
  EXPECT_EQ(before.ranks.front().rank, 5u);
  EXPECT_EQ(before.ranks.front().host, "h5");
  EXPECT_NEAR(before.ranks.front().lag, 0.050, 0.001);
  EXPECT_NEAR(before.iteration, job.iteration(), 1e-6);
  ASSERT_EQ(before.findings.front().cause, Cause::kSlowInput) << text_of(before);
  EXPECT_NEAR(before.findings.front().seconds, 0.050, 0.001);
  job.clock_off = 3600;
  const Explanation after = explained(job);
  EXPECT_EQ(text_of(after), text_of(before));
}

// One server for all: its link is full, and the others' are not.
TEST(Explain, NamesAPatternThatLoadsOneHostsLink) {
  for (const bool server : {true, false}) {
    std::vector<HostTimes> hosts;
    for (auto& [before, after] : MadeUpJob(4).reports()) {
      for (json* report : {&before, &after}) {
        if (server == ((*report)["host"] == "h2")) continue;
        json& rail = (*report)["rails"][0];
        for (json& cls : (*report)["classes"])
          for (const char* key : {"sent_bytes", "received_bytes"}) cls[key] = cls[key].get<std::uint64_t>() / 3;
        for (const char* key : {"sent_bytes", "received_bytes", "nic_sent_bytes", "nic_received_bytes"})
          rail[key] = rail[key].get<std::uint64_t>() / 3;
      }
      hosts.push_back(difference(before, after).value());
    }
    const Explanation all = explain(hosts).value();
    const Finding* found = find(all, Cause::kPattern);
    if (server) {
      ASSERT_NE(found, nullptr) << text_of(all);
      EXPECT_THAT(found->places, ::testing::ElementsAre("the link from host h2", "the link to host h2"));
      EXPECT_THAT(found->evidence, HasSubstr("3.0 times as many bytes"));
      EXPECT_THAT(found->help, HasSubstr("pattern"));
      EXPECT_EQ(find(all, Cause::kFullLink), nullptr) << text_of(all);
    } else {  // three of four are full: that is the usual
      EXPECT_EQ(found, nullptr) << text_of(all);
      EXPECT_NE(find(all, Cause::kFullLink), nullptr) << text_of(all);
    }
  }
}

// The two directions are compared apart: the root of broadcasts sends much and receives no more than others.
TEST(Explain, NamesAPatternThatLoadsALinkInOneDirection) {
  for (const double others : {0.3, 0.0}) {
    std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
    for (HostTimes& host : hosts) {
      const double sends = host.host == "h2" ? 1 : others, receives = 0.3;
      for (ClassTimes& cls : host.classes) cls.sent_bytes *= sends, cls.received_bytes *= receives;
      for (RailTimes& rail : host.rails) {
        *rail.nic_sent *= sends, *rail.nic_received *= receives;
        rail.sent *= sends, rail.received *= receives;
      }
    }
    const Explanation all = explain(hosts).value();
    const Finding* found = find(all, Cause::kPattern);
    ASSERT_NE(found, nullptr) << text_of(all);
    EXPECT_THAT(found->places, ::testing::ElementsAre("the link from host h2"));
    EXPECT_THAT(found->evidence, HasSubstr(others > 0 ? "3.3 times as many" : "nothing on the usual host's link"));
  }
}

// What others send, of the link's speed: so much the planner takes away.
TEST(Explain, SaysHowMuchOfALinkIsOthers) {
  MadeUpJob job(4);
  job.hosts[1].foreign_received = 0.5;
  job.communication *= 2;
  const Explanation all = explained(job);
  const Finding* found = find(all, Cause::kForeignBulk);
  ASSERT_NE(found, nullptr);
  EXPECT_NEAR(found->amount, 0.5, 0.02);
}

// Neither of two hosts is the usual one, however unlike they are.
TEST(Explain, TwoHostsShowNoPattern) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(2));
  for (ClassTimes& cls : hosts[1].classes) cls.sent_bytes /= 10;
  *hosts[1].rails[0].nic_sent /= 10;
  hosts[1].rails[0].sent /= 10;
  const Explanation all = explain(hosts).value();
  EXPECT_EQ(find(all, Cause::kPattern), nullptr) << text_of(all);
  EXPECT_NE(find(all, Cause::kFullLink), nullptr) << text_of(all);
}

// Three times the least round trip is no queue where that is short: so little comes from the hosts alone.
TEST(Explain, ARoundTripOfLessThanAMillisecondShowsNoQueue) {
  MadeUpJob job(4);
  job.communication *= 5;
  for (MadeUpHost& host : job.hosts) {
    host.window = 4096;
    host.stalls_per_send = 12;
    host.urgent = host.bulk = {.rate = 0.12, .rtt = 0.0006, .min_rtt = 0.0001};
  }
  const Explanation all = explained(job);
  EXPECT_NE(find(all, Cause::kSmallWindow), nullptr) << text_of(all);
  EXPECT_EQ(find(all, Cause::kSlowLink), nullptr) << text_of(all);
}

// All bytes are of one class, and the link is full of them.
TEST(Explain, NamesAnOrderThatTheNetworkCannotSee) {
  for (const bool alike : {true, false}) {
    MadeUpJob job(4);
    job.urgent = alike ? 0.005 : 0.03;
    const Explanation all = explained(job);
    const Finding* found = find(all, Cause::kOrdering);
    ASSERT_EQ(found != nullptr, alike) << text_of(all);
    if (!alike) continue;
    EXPECT_EQ(found->confidence, Confidence::kPossible) << "counts do not say what is needed first";
    EXPECT_THAT(found->evidence, HasSubstr("in class bulk"));
    EXPECT_NEAR(found->seconds, 0.0105, 0.001) << "computation can hide no more";
  }
  MadeUpJob few(4), limited(4);
  few.urgent = limited.urgent = 0;
  few.operations = 1;  // in each class
  EXPECT_EQ(find(explained(few), Cause::kOrdering), nullptr) << "there is nothing to order";
  limited.urgent = 1;
  for (MadeUpHost& host : limited.hosts) host.demoted = 0.999;
  EXPECT_EQ(find(explained(limited), Cause::kOrdering), nullptr) << "the limit has made them alike";
}

// Four operations of an iteration can be put in order; where the network has one class, none can.
TEST(Explain, AnOrderIsOfFourOperationsAndTwoClasses) {
  for (const double operations : {3, 4}) {
    std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
    for (HostTimes& host : hosts) {
      host.classes[0].sent_bytes = host.classes[0].operations = 0;
      host.classes[1].operations = operations * host.iterations;
    }
    const Explanation all = explain(hosts).value();
    EXPECT_EQ(find(all, Cause::kOrdering) != nullptr, operations == 4) << text_of(all);
    for (HostTimes& host : hosts) host.classes.erase(host.classes.begin());
    EXPECT_EQ(find(explain(hosts).value(), Cause::kOrdering), nullptr) << "there is no class for what is urgent";
  }
}

// Where no link is full, or there is no computation to hide what is sent, the order costs nothing.
TEST(Explain, AnOrderThatCostsNothingIsNotNamed) {
  MadeUpJob empty(4), bare(4);
  empty.urgent = bare.urgent = 0;
  empty.communication *= 5;
  for (MadeUpHost& host : empty.hosts) host.rank.compute = 0.1;
  for (MadeUpHost& host : bare.hosts) host.rank = {.compute = 0.0001, .input = 0, .without_cpu = 0};
  EXPECT_EQ(find(explained(empty), Cause::kOrdering), nullptr) << text_of(explained(empty));
  EXPECT_EQ(find(explained(bare), Cause::kOrdering), nullptr) << text_of(explained(bare));
  EXPECT_NE(find(explained(bare), Cause::kFullLink), nullptr) << text_of(explained(bare));
}

// A path of the second rail is measured against that rail's link, though the first one is ten times as fast.
TEST(Explain, ComparesAPathWithTheLinkOfItsOwnRail) {
  MadeUpJob job(2);
  job.communication *= 5;
  std::vector<HostTimes> hosts;
  for (auto& [before, after] : job.reports()) {
    for (json* report : {&before, &after}) {
      json idle = (*report)["rails"][0];
      idle["nic"] = "eth1";
      for (const char* key : {"sent_bytes", "received_bytes", "nic_sent_bytes", "nic_received_bytes"}) idle[key] = 0;
      idle["bits_per_second"] = 10 * job.speed;
      (*report)["rails"].insert((*report)["rails"].begin(), idle);
      for (json& connection : (*report)["connections"]) connection["rail"] = 1;
    }
    hosts.push_back(difference(before, after).value());
  }
  const Explanation all = explain(hosts).value();
  EXPECT_EQ(find(all, Cause::kSlowLink), nullptr) << text_of(all);
}

// The usual one of two is the faster one; and so where two of four are slow.
TEST(Explain, NamesSlowRanksThatAreHalfOfAll) {
  for (const std::size_t count : {2, 4}) {
    MadeUpJob job(count);
    for (std::size_t h = count / 2; h < count; ++h) job.hosts[h].rank.compute += 0.025;
    const Explanation all = explained(job);
    const Finding* found = find(all, Cause::kSlowComputing);
    ASSERT_NE(found, nullptr) << text_of(all);
    EXPECT_EQ(found->places.size(), count / 2) << text_of(all);
    EXPECT_EQ(found->places.back(), "rank " + std::to_string(count - 1) + " on host h" + std::to_string(count - 1));
    EXPECT_EQ(find(all, Cause::kComputation), nullptr) << text_of(all);
  }
}

TEST(Explain, ReadsTheReportsOfAThousandHostsWhileSomebodyWaits) {
  MadeUpJob job(1024);
  job.hosts[700].rank.input = 0.050;
  const auto reports = job.reports();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<HostTimes> hosts;
  for (const auto& [before, after] : reports) hosts.push_back(*difference(before, after));
  const Explanation all = *explain(hosts);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  ASSERT_EQ(all.findings.front().cause, Cause::kSlowInput) << text_of(all);
  EXPECT_EQ(all.ranks.front().rank, 700u);
}

// All wait for the slow one: that is no computation of theirs.
TEST(Explain, DoesNotCallItComputationWhereAllWaitForOneRank) {
  MadeUpJob job(4);
  job.bytes = 4000;
  job.communication = 0.0005;
  job.hosts[0].rank.input = 0.040;
  const Explanation all = explained(job);
  EXPECT_NE(find(all, Cause::kSlowInput), nullptr) << text_of(all);
  EXPECT_EQ(find(all, Cause::kComputation), nullptr) << text_of(all);
  for (MadeUpHost& host : job.hosts) host.rank = {.without_cpu = 0.020};
  const Explanation alike = explained(job);
  EXPECT_NE(find(alike, Cause::kComputation), nullptr) << text_of(alike);
  EXPECT_NE(find(alike, Cause::kNoCpu), nullptr) << text_of(alike);
}

TEST(Explain, SaysThatPartsCannotBeToldApartWhereTheyAreNotKnown) {
  MadeUpJob job(4);
  job.hosts[1].rank.input = 0.040;
  std::vector<HostTimes> hosts;
  for (auto [before, after] : job.reports()) {
    before["ranks"][0]["waiter"] = after["ranks"][0]["waiter"] = nullptr;
    hosts.push_back(*difference(before, after));
  }
  const Result<Explanation> all = explain(hosts);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->findings.front().cause, Cause::kSlowComputing);
  EXPECT_EQ(all->findings.front().confidence, Confidence::kLikely);
  EXPECT_THAT(all->findings.front().help, HasSubstr("cannot be told apart"));
}

// No thread is blocked then, whatever the network does: that is no computation.
TEST(Explain, WhereStreamsWaitOnAGpuNothingIsSaidOfComputation) {
  for (const bool full : {true, false}) {
    MadeUpJob job(4);
    if (!full) job.bytes = 4000;
    for (MadeUpHost& host : job.hosts) {
      host.stream_waits = 12;
      host.rank.compute = 0.001;
    }
    const Explanation all = explained(job);
    EXPECT_FALSE(all.exposed) << *all.exposed;
    EXPECT_FALSE(all.efficiency);
    EXPECT_FALSE(all.ranks.front().computing);
    EXPECT_EQ(find(all, Cause::kComputation), nullptr) << text_of(all);
    for (const Finding& finding : all.findings) EXPECT_EQ(finding.confidence, Confidence::kPossible) << text_of(all);
    EXPECT_EQ(find(all, Cause::kFullLink) != nullptr, full) << text_of(all);
    ASSERT_EQ(find(all, Cause::kNotKnown) != nullptr, !full) << text_of(all);
    if (full) continue;
    EXPECT_THAT(find(all, Cause::kNotKnown)->evidence, HasSubstr("12.0 times in an iteration"));
  }
}

TEST(Explain, SaysSoWhenThereIsNothingToCompare) {
  MadeUpJob job(3);
  job.seconds = job.iteration() / 100;
  std::vector<HostTimes> hosts;
  for (auto [before, after] : job.reports()) {
    after["at_ns"] = before["at_ns"].get<std::uint64_t>() + 1000;
    after["iterations"] = before["iterations"];
    hosts.push_back(*difference(before, after));
  }
  EXPECT_EQ(explain(hosts).status().code(), Code::kUnavailable);
  EXPECT_EQ(explain({}).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tensorlane::explain
