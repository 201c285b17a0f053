// The parts of `tensorlane verify` that need no host: who is probed, what bursts say, and what a host may not say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "common/probe/session.h"
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

// Flows of a command that asks for `count` connections with each.
json many_flows(int flows, int count) {
  json list = json::array();
  for (int i = 0; i < flows; ++i)
    list.push_back({{"id", i}, {"address", "10.0.0.1"}, {"source", "10.0.0.2"}, {"port", 7111}, {"count", count}});
  return list;
}

TEST(Pieces, AreNoLargerThanTheyMayBe) {
  for (const auto& [bytes, count] : {std::pair(std::size_t{12} << 10, 1), {std::size_t{4} << 20, 100}}) {
    ProbePieces pieces({json{{"do", "describe"}}, json{{"do", "sweep"}, {"flows", many_flows(500, count)}}}, bytes);
    EXPECT_EQ(pieces.next({}), (json{{"do", "describe"}}));
    int told = 0, all = 0;
    for (; const auto piece = pieces.next({}); ++all) {
      EXPECT_LT(piece->dump().size(), bytes);
      EXPECT_LE((*piece)["flows"].size() * static_cast<std::size_t>(count), probe::kMaxFlows);
      for (const json& flow : (*piece)["flows"]) EXPECT_EQ(flow["id"], told++);
    }
    EXPECT_EQ(told, 500);
    EXPECT_GT(all, 3);
  }
}

TEST(Pieces, ShareTheDeadlineOfTheirCommand) {
  const json probe{{"do", "probe"}, {"deadline_ms", 1000}, {"flows", many_flows(3, 8000)}};
  const auto at = [](int ms) { return ProbePieces::Time(std::chrono::milliseconds(ms)); };
  ProbePieces pieces({probe, probe}, 1 << 20);
  EXPECT_EQ((*pieces.next(at(5000)))["deadline_ms"], 1000);
  EXPECT_EQ((*pieces.next(at(5400)))["deadline_ms"], 600);
  EXPECT_EQ((*pieces.next(at(6000)))["deadline_ms"], 1000) << "of the next command, as nothing is left for the last";
  EXPECT_EQ((*pieces.next(at(6999)))["deadline_ms"], 1);
  EXPECT_EQ(pieces.next(at(7000)), std::nullopt);
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

// A program that says back how many flows it was asked for, which takes no command of more than a program may.
TEST(Agents, AreAskedInPieces) {
  const std::string program = ::testing::TempDir() + "/made-up-probe" + std::to_string(::getpid());
  std::ofstream(program) << R"(#!/bin/sh
while read -r line; do
  ids=$(echo "$line" | grep -o '"id"' | wc -l)
  echo "{\"kind\": \"asked\", \"ids\": $ids}"
  echo '{"kind": "done"}'
done
)";
  auto hands =
      start_agents({.hosts = {"a", "b"}, .shell = "env MADE_UP={host} PATH=/usr/bin:/bin", .program = program});
  ASSERT_TRUE(hands.ok()) << hands.status().to_string();
  for (int time = 0; time < 2; ++time) {
    const auto answers = (*hands)->ask({{json{{"do", "probe"}, {"flows", many_flows(20, 1000)}}}, {}}, seconds(30));
    ASSERT_TRUE(answers[0].ok()) << answers[0].status().to_string();
    std::vector<int> asked;
    for (const json& line : *answers[0])
      if (line["kind"] == "asked") asked.push_back(line["ids"]);
    EXPECT_THAT(asked, ElementsAre(8, 8, 4));
    EXPECT_TRUE(answers[1].ok() && answers[1]->empty());
  }
  std::filesystem::remove(program);
}

TEST(Agents, SayWhatCannotBeStarted) {
  EXPECT_EQ(start_agents({.hosts = {"a"}, .shell = "ssh", .program = "/bin/true"}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(start_agents({.hosts = {"a"}, .program = "/nonexistent"}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tensorlane::cli
