#include "monitor/report/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "monitor/report/page.h"
#include "tests/unit/top/reports.h"

namespace tensorlane::report {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Reports reports_of(int hosts, double seconds) {
  Reports reports;
  for (int h = 0; h < hosts; ++h) reports[top::host_name(h)] = top::report_of(top::host_name(h), h, seconds);
  return reports;
}

Figures figures_of(int hosts, int looks) {
  Watch watch;
  for (int look = 0; look < looks; ++look) watch.add(look, reports_of(hosts, 10 + look));
  Result<Figures> figures = watch.figures();
  EXPECT_TRUE(figures.ok()) << figures.status().to_string();
  return *figures;
}

TEST(Figures, AreOfEachSecondAndOfTheWholeTime) {
  const Figures figures = figures_of(4, 6);
  EXPECT_EQ(figures.hosts, 4u);
  ASSERT_EQ(figures.times.size(), 5u);
  EXPECT_EQ(figures.times[4].from, 4);
  EXPECT_EQ(figures.times[4].to, 5);
  EXPECT_NEAR(figures.times[4].iteration, 0.1, 1e-9);
  ASSERT_EQ(figures.classes.size(), 2u);
  EXPECT_NEAR(figures.classes[0].sent, 4 * 100e6, 1);
  EXPECT_NEAR(*figures.classes[0].queue, 1e-3, 1e-9);
  ASSERT_EQ(figures.ranks.size(), 8u);
  EXPECT_EQ(figures.ranks[0].rank, 7u);
  EXPECT_EQ(figures.ranks[0].host, "gpu03");
  EXPECT_NEAR(figures.ranks[0].lag, 0.02, 1e-9);
  ASSERT_EQ(figures.ranks[0].lags.size(), 5u);
  EXPECT_NEAR(*figures.ranks[0].lags[2], 0.02, 1e-9);
}

TEST(Figures, AnIterationOfSeveralSecondsIsOnePoint) {
  Watch watch;
  for (int look = 0; look < 7; ++look) {
    Reports reports = reports_of(2, 10 + look);
    for (auto& [host, report] : reports) report["iterations"] = look / 3;
    watch.add(look, std::move(reports));
  }
  const Figures figures = *watch.figures();
  ASSERT_EQ(figures.times.size(), 2u);
  EXPECT_EQ(figures.times[1].from, 3);
  EXPECT_EQ(figures.times[1].to, 6);
  EXPECT_NEAR(figures.times[1].iteration, 3, 1e-9);
}

TEST(Figures, HostsThatSayNothingOrNonsenseAreNamed) {
  Watch watch;
  for (int look = 0; look < 3; ++look) {
    Reports reports = reports_of(4, 10 + look);
    reports["gpu01"] = json{{"host", "gpu01"}};
    reports["gpu02"]["classes"] = json::array();
    watch.add(look, std::move(reports));
    watch.add_silent("gpu09", "it has not answered");
  }
  const Figures figures = *watch.figures();
  EXPECT_EQ(figures.hosts, 2u);
  EXPECT_EQ(figures.silent.size(), 3u);
  EXPECT_THAT(page_html(figures, "now"), HasSubstr("Hosts without an answer: 3"));
  Watch none;
  none.add(0, {{"a", json(3)}});
  none.add(1, {{"a", json("x")}});
  EXPECT_THAT(none.figures().status().to_string(), HasSubstr("that can be used"));
}

TEST(Figures, AHostThatAnswersAgainIsNamedNoMore) {
  Watch watch;
  for (int look = 0; look < 4; ++look) {
    Reports reports = reports_of(4, 10 + look);
    if (look == 1) reports.erase("gpu01");
    watch.add(look, std::move(reports));
    if (look == 1) watch.add_silent("gpu01", "it has not answered");
    EXPECT_EQ(look == 0 || watch.figures()->silent.size() == (look == 1 ? 1u : 0u), true) << look;
  }
  EXPECT_EQ(watch.figures()->hosts, 4u);
}

TEST(Figures, AHostThatIsSilentWhereNothingGoesOnIsNamed) {
  Watch watch;
  Reports later = reports_of(4, 11);
  for (auto& [host, report] : later) report["iterations"] = reports_of(4, 10)[host]["iterations"];
  watch.add(0, reports_of(4, 10));
  watch.add(1, std::move(later));
  watch.add_silent("gpu09", "its daemon is stopped");
  const std::string error = watch.figures().status().to_string();
  EXPECT_THAT(error, HasSubstr("and host gpu09 says nothing"));
  EXPECT_THAT(error, HasSubstr("its daemon is stopped"));
}

TEST(Figures, WhatIsExposedIsNotKnownWhereStreamsWait) {
  Watch watch;
  for (int look = 0; look < 3; ++look) {
    Reports reports = reports_of(2, 10 + look);
    for (auto& [host, report] : reports) report["ranks"][0]["stream_waits"] = 100 * look;
    watch.add(look, std::move(reports));
  }
  const Figures figures = *watch.figures();
  EXPECT_TRUE(to_json(figures)["exposed_s"].is_null());
  EXPECT_TRUE(to_json(figures)["efficiency"].is_null());
  const std::string page = page_html(figures, "now");
  EXPECT_THAT(page, HasSubstr("<b>not known</b>how long an iteration waits for tensors: streams wait on the GPU"));
  EXPECT_THAT(page, Not(HasSubstr("of it is computation")));
  EXPECT_THAT(page_html(figures_of(2, 3), "now"), HasSubstr("of it is computation"));
}

TEST(Tags, OfFlowsAreComparedWithTheirClasses) {
  json flows = json::array();
  for (int f = 0; f < 100; ++f)
    flows.push_back({{"job_id", 42u},
                     {"peer", "gpu01"},
                     {"class", "urgent"},
                     {"rail", 0},
                     {"dscp", f < 60 ? 43 : 0},
                     {"pcp", 5},
                     {"transport", "tcp"}});
  flows.push_back(
      {{"job_id", 42u}, {"peer", "gpu01"}, {"class", "bulk"}, {"dscp", -1}, {"pcp", -1}, {"transport", "rdma"}});
  flows.push_back({{"job_id", 43u}, {"peer", "gpu01"}, {"class", "urgent"}, {"dscp", 1}});
  flows.push_back(7);
  const json classes = {{{"name", "urgent"}, {"dscp", 43}, {"pcp", 5}}, {{"name", "bulk"}, {"dscp", 27}, {"pcp", 3}}};
  Figures figures;
  add_tags(
      {{"gpu00", {{"fabric", {{"classes", classes}}}, {"lane", {{"flows", flows}}}}}, {"gpu01", json("no status")}}, 42,
      &figures);
  ASSERT_EQ(figures.tags.size(), 3u);
  EXPECT_TRUE(figures.tags[0].wrong());
  EXPECT_EQ(figures.tags[0].flows, 40u);
  EXPECT_EQ(figures.tags[1].flows, 60u);
  EXPECT_FALSE(figures.tags[2].known());
  EXPECT_EQ(figures.wrong_flows.size(), kMostFlows);
  EXPECT_EQ(figures.wrong_flows[0], "gpu00 to gpu01, class urgent, rail 0: DSCP 0 instead of 43");
  EXPECT_EQ(figures.other_wrong_flows, 20u);
}

TEST(Pages, StayShortHoweverManyHostsThereAre) {
  Figures figures = figures_of(1024, 3);
  EXPECT_EQ(figures.ranks.size(), kMostRanks);
  EXPECT_EQ(figures.other_ranks, 2 * 1024 - kMostRanks);
  for (int h = 0; h < 1000; ++h) figures.silent[top::host_name(h)] = "silent";
  json marks = json::array();
  for (int from = 0; from < 150; ++from) {
    for (int to = 0; to < 150; ++to)
      marks.push_back(
          {{"from", top::host_name(from)}, {"to", top::host_name(to)}, {"dscp", to == 99 ? "failed" : "passed"}});
  }
  figures.verify = *read_verify({{"marks", marks}});
  EXPECT_THAT(figures.verify->hosts, testing::Contains("gpu99"));
  EXPECT_EQ(figures.verify->other_hosts, 150 - kMostHosts);
  EXPECT_EQ(figures.verify->all.failed, 150u);
  EXPECT_LE(page_html(figures, "now").size(), 200'000u);
}

TEST(Pages, ALongWatchHasAtMostSixtyPoints) {
  const Figures figures = figures_of(2, 200);
  EXPECT_LE(figures.times.size(), kMostTimes);
  EXPECT_EQ(figures.times.front().from, 0);
  EXPECT_EQ(figures.times.back().to, 199);
  for (const RankFigures& rank : figures.ranks) EXPECT_EQ(rank.lags.size(), figures.times.size());
}

// 200 ranks for eleven minutes: what is kept is thinned out as it comes. Sanitizers count nothing here.
TEST(Figures, ALongWatchKeepsNoMoreThanAShortOne) {
  constexpr int kShort = 130, kLong = 650;
  Watch watch;
  std::size_t after_short = 0;
  for (int look = 0; look < kLong; ++look) {
    Reports reports = reports_of(2, 10 + look);
    for (auto& [host, report] : reports) {
      const json rank = report["ranks"][0];
      for (int r = 2; r < 100; ++r) {
        report["ranks"].push_back(rank);
        report["ranks"].back()["rank"] = 1000 * (host == "gpu01") + r;
      }
    }
    watch.add(look, std::move(reports));
    if (look == kShort) after_short = mallinfo2().uordblks;
  }
  const std::size_t after_long = mallinfo2().uordblks;
  EXPECT_LT(after_long, after_short + (std::size_t{1} << 20));
  EXPECT_EQ(watch.figures()->times.back().to, kLong - 1);
}

// All points but the last one are of as many looks, and the mean of a rank that was not always there is its own.
TEST(Figures, ALongWatchHasPointsOfEqualLength) {
  Watch watch;
  for (int look = 0; look < 200; ++look) {
    Reports reports = reports_of(2, 10 + look);
    if (look % 2 == 1) reports.erase("gpu01");
    watch.add(look, std::move(reports));
  }
  const Figures figures = *watch.figures();
  ASSERT_EQ(figures.times.size(), 50u);
  for (std::size_t i = 0; i + 1 < figures.times.size(); ++i) {
    EXPECT_EQ(figures.times[i].to - figures.times[i].from, 4) << i;
    EXPECT_EQ(figures.times[i].to, figures.times[i + 1].from) << i;
    EXPECT_NEAR(figures.times[i].iteration, 0.1, 1e-9) << i;
  }
}

TEST(Pages, OfARankThatHasComeLaterNothingIsMadeUp) {
  Watch watch;
  for (int look = 0; look < 200; ++look) {
    Reports reports = reports_of(4, 10 + look);
    if (look < 51) reports.erase("gpu03");
    watch.add(look, std::move(reports));
  }
  const Figures figures = *watch.figures();
  const auto late = std::ranges::find(figures.ranks, 7u, &RankFigures::rank);
  ASSERT_NE(late, figures.ranks.end());
  EXPECT_FALSE(late->lags.front());
  EXPECT_TRUE(late->lags.back());
  for (const std::optional<double>& lag : late->lags) EXPECT_NEAR(lag.value_or(0.02), 0.02, 1e-9);
}

TEST(Pages, NamesAreTextAndNeverTags) {
  Figures figures = figures_of(4, 3);
  const std::string evil = "</title><script>x</script>\"' & \x1b\xff";
  figures.job = evil;
  figures.silent[evil] = evil;
  figures.classes[0].name = evil;
  figures.ranks[0].host = evil;
  figures.tags.push_back({evil, evil});
  figures.wrong_flows.push_back(evil);
  figures.explanation.findings[0].where = evil;
  const std::string page = page_html(figures, "now");
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, HasSubstr("&lt;/title&gt;&lt;script&gt;x&lt;/script&gt;&quot;' &amp; ??"));
}

TEST(Pages, AVerdictIsOfThePairInItsDirection) {
  const auto verify = read_verify({{"marks",
                                    {{{"from", "a"}, {"to", "b"}, {"dscp", "failed"}},
                                     {{"from", "a"}, {"to", "b"}, {"dscp", "passed"}},
                                     {{"from", "b"}, {"to", "a"}, {"dscp", "passed"}}}}});
  ASSERT_TRUE(verify.ok());
  EXPECT_THAT(verify->hosts, testing::ElementsAre("a", "b"));
  EXPECT_EQ(verify->cells.at({0, 1}).failed, 1u);
  EXPECT_EQ(verify->cells.at({0, 1}).passed, 1u);
  EXPECT_EQ(verify->cells.at({1, 0}).failed, 0u);
  EXPECT_EQ(verify->cells.at({1, 0}).passed, 1u);
}

TEST(Pages, VerdictsMustBeSome) {
  EXPECT_FALSE(read_verify(json(3)).ok());
  EXPECT_FALSE(read_verify({{"pairs", 3}}).ok());
  const auto strange =
      read_verify({{"marks", {1, {{"from", 3}, {"to", "b"}}, {{"from", "a"}, {"to", "b"}, {"dscp", 7}}}}});
  ASSERT_TRUE(strange.ok());
  EXPECT_EQ(strange->all.untested, 1u);
}

}  // namespace
}  // namespace tensorlane::report
