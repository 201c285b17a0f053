// The parts of `tensorlane verify` that need no host: who is probed, what bursts say, and what a host may not say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "monitor/cli/verify_agents.h"
#include "monitor/cli/verify_daemons.h"
#include "monitor/cli/verify_load.h"
#include "monitor/cli/verify_run.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(Pairs, AreProbedInBothDirections) {
  EXPECT_THAT(choose_pairs(4, Pairs::kAll, 0, 0), SizeIs(12));
  EXPECT_THAT(choose_pairs(4, Pairs::kRing, 0, 0), SizeIs(8));
  EXPECT_THAT(choose_pairs(2, Pairs::kRing, 0, 0), SizeIs(2));
  EXPECT_THAT(choose_pairs(100, Pairs::kSample, 7, 3), SizeIs(14));
  EXPECT_THAT(choose_pairs(3, Pairs::kSample, 70, 3), SizeIs(6));
  EXPECT_EQ(choose_pairs(100, Pairs::kSample, 7, 3), choose_pairs(100, Pairs::kSample, 7, 3));
  const auto chosen = choose_pairs(100, Pairs::kSample, 7, 4);
  const std::set<std::pair<std::size_t, std::size_t>> all(chosen.begin(), chosen.end());
  EXPECT_THAT(all, SizeIs(14));
  for (const auto& [from, to] : chosen) EXPECT_TRUE(from != to && all.contains({to, from}));
}

TEST(Bursts, AddUpInWindows) {
  // 25 ms are a window: 5 slots of 1000 bytes, of two streams that begin apart.
  const std::vector<BurstSlots> streams{{100, 5, std::vector<std::uint64_t>(10, 1000)},
                                        {125, 5, std::vector<std::uint64_t>(10, 1000)}};
  const double one = 5 * 1000 * 8 / 0.025;
  EXPECT_THAT(window_rates(streams, 100, 175), ElementsAre(one, 2 * one, one));
  EXPECT_THAT(window_rates(streams, 100, 110), SizeIs(0));
}

TEST(Bursts, HaveAMedianWithAnInterval) {
  const verify::Estimate none = median_of({}), one = median_of({3}), many = median_of({9, 1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(none.value, 0);
  EXPECT_EQ(one.low, 3);
  EXPECT_EQ(one.high, 3);
  EXPECT_EQ(many.value, 5);
  EXPECT_EQ(many.low, 2);
  EXPECT_EQ(many.high, 8);
}

TEST(Questions, AreNoLongerThanTheyMayBe) {
  json flows = json::array();
  for (int i = 0; i < 500; ++i)
    flows.push_back(
        {{"id", i}, {"address", "10.0.0.1"}, {"source", "10.0.0.2"}, {"port", 7111}, {"source_port", 40000}});
  const auto questions = in_questions({json{{"do", "describe"}}, json{{"do", "sweep"}, {"flows", flows}}});
  std::size_t told = 0;
  for (const ProbeLines& lines : questions) {
    ASSERT_THAT(lines, SizeIs(1));
    EXPECT_LT(lines[0].dump().size(), std::size_t{13} << 10);
    if (lines[0].contains("flows")) {
      for (const json& flow : lines[0]["flows"]) EXPECT_EQ(flow["id"], told++);
    }
  }
  EXPECT_EQ(told, 500U);
  EXPECT_GT(questions.size(), 4U);
}

TEST(Answers, AreCheckedBeforeTheyAreBelieved) {
  EXPECT_TRUE(parse_probe_line(R"({"kind": "done"})").ok());
  for (const char* line : {"", "hello", "[]", "{}", R"({"kind": 1})"})
    EXPECT_EQ(parse_probe_line(line).status().code(), Code::kCorrupt) << line;
  EXPECT_EQ(parse_probe_line(R"({"kind": "error", "what": 5})").status().code(), Code::kInvalidArgument);
  const json line{{"a", 5}, {"b", "text\x1b[1m"}, {"c", -1}, {"d", 1e300}};
  EXPECT_EQ(probe_number(line, "a", 0, 63), 5);
  EXPECT_EQ(probe_number(line, "a", 0, 4), std::nullopt);
  EXPECT_EQ(probe_number(line, "b", 0, 63), std::nullopt);
  EXPECT_EQ(probe_number(line, "c", 0, 63), std::nullopt);
  EXPECT_EQ(probe_number(line, "d", 0, 63), std::nullopt);
  EXPECT_EQ(probe_number(line, "e", 0, 63), std::nullopt);
  EXPECT_EQ(probe_text(line, "b"), "text?[1m");
  EXPECT_EQ(probe_text(line, "a"), "");
}

TEST(Agents, SayWhatCannotBeStarted) {
  EXPECT_EQ(start_agents({.hosts = {"a"}, .shell = "ssh", .program = "/bin/true"}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(start_agents({.hosts = {"a"}, .program = "/nonexistent"}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tensorlane::cli
