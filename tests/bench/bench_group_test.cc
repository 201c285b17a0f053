// The bench's coordinator against real peers and against workers that misbehave.
#include "monitor/cli/bench_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "monitor/cli/bench.h"
#include "monitor/cli/bench_contenders.h"
#include "monitor/cli/bench_daemons.h"
#include "monitor/cli/bench_statistics.h"

namespace tensorlane::cli {
namespace {

using testing::Each;
using testing::Gt;
using testing::HasSubstr;
using testing::SizeIs;

class BenchGroupTest : public testing::Test {
 protected:
  BenchGroupTest() {
    std::string path = (std::filesystem::temp_directory_path() / "bench-test-XXXXXX").string();
    folder_ = ::mkdtemp(path.data());
  }
  ~BenchGroupTest() override { std::filesystem::remove_all(folder_); }

  // A group of one rank whose worker is a few lines of Python that speak through `link`.
  Contender scripted(const std::string& body) {
    const std::string script =
        "import socket,sys,time\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "link=s.makefile('rw',buffering=1)\n" +
        body;
    process::Spawn how;
    how.argv = {"python3", "-c", script};
    return {"scripted", {how}, {}};
  }

  std::string folder_;
  process::Processes processes_;
};

class PeerTest : public BenchGroupTest, public testing::WithParamInterface<std::tuple<std::string, int>> {};

TEST_P(PeerTest, SumsAreRightAndTimed) {
  const auto [name, hosts] = GetParam();
  auto peer = make_peer(name, {hosts, 2}, BENCH_WORKERS, folder_);
  if (peer.status().code() == Code::kNotFound) GTEST_SKIP() << peer.status().to_string();
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  BenchGroup group(processes_, std::move(peer).value(), 2);
  const Status started = group.start(folder_, seconds(60));
  ASSERT_TRUE(started.ok()) << started.to_string();
  for (const std::uint64_t bytes : {std::uint64_t{4096}, std::uint64_t{1} << 20}) {
    const auto measured = group.run(bytes, 3, seconds(60));
    ASSERT_TRUE(measured.ok()) << measured.status().to_string();
    EXPECT_THAT(measured->seconds, SizeIs(3));
    EXPECT_THAT(measured->seconds, Each(Gt(0.0)));
    EXPECT_GT(measured->cpu_seconds, 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PeerTest,
                         testing::Combine(testing::Values("gloo", "mpich", "openmpi"), testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) == 1 ? "OneHost" : "TwoHosts");
                         });

TEST_F(BenchGroupTest, TakesTheSlowestRank) {
  Contender two{"scripted", {}, {}};
  for (const char* answer : {"0 1000 10 500", "1 3000 400 20"}) {
    const std::string text(answer);
    two.processes.push_back(scripted("link.write('hello " + text.substr(0, 1) +
                                     "\\n')\nlink.readline()\nlink.write('done " + text.substr(2) +
                                     "\\n')\nlink.readline()")
                                .processes.front());
  }
  BenchGroup group(processes_, two, 2);
  ASSERT_TRUE(group.start(folder_, seconds(30)).ok());
  const auto measured = group.run(4096, 2, seconds(30));
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  EXPECT_DOUBLE_EQ(measured->seconds[0], 400e-9);
  EXPECT_DOUBLE_EQ(measured->seconds[1], 500e-9);
  EXPECT_DOUBLE_EQ(measured->cpu_seconds, 4000e-9);
  EXPECT_EQ(measured->allreduces, 3);
}

TEST_F(BenchGroupTest, AWrongSumIsAnError) {
  BenchGroup group(processes_, scripted("link.write('hello 0\\n')\nlink.readline()\nlink.write('error wrong sum\\n')"),
                   1);
  ASSERT_TRUE(group.start(folder_, seconds(30)).ok());
  const auto measured = group.run(4096, 2, seconds(30));
  EXPECT_EQ(measured.status().code(), Code::kInternal);
  EXPECT_THAT(measured.status().to_string(), HasSubstr("wrong sum"));
}

TEST_F(BenchGroupTest, AWorkerThatDiesIsAnError) {
  BenchGroup group(processes_, scripted("link.write('hello 0\\n')\nlink.readline()\nsys.exit(3)"), 1);
  ASSERT_TRUE(group.start(folder_, seconds(30)).ok());
  EXPECT_EQ(group.run(4096, 2, seconds(30)).status().code(), Code::kUnavailable);
}

TEST_F(BenchGroupTest, AWorkerThatDiesBeforeItsGreetingIsAnError) {
  BenchGroup group(processes_, scripted("sys.exit(3)"), 1);
  EXPECT_EQ(group.start(folder_, seconds(30)).code(), Code::kUnavailable);
}

TEST_F(BenchGroupTest, RanksThatDoNotAnswerAreNamed) {
  BenchGroup group(processes_, scripted("link.write('hello 0\\n')\nlink.flush()\ntime.sleep(60)"), 2);
  const Status started = group.start(folder_, seconds(2));
  EXPECT_EQ(started.code(), Code::kTimedOut);
  EXPECT_THAT(started.what(), HasSubstr("ranks did not start: 1"));
}

TEST_F(BenchGroupTest, RubbishIsAnError) {
  BenchGroup group(
      processes_, scripted("link.write('hello 0\\n')\nlink.readline()\nlink.write('done 1 2\\n')\nlink.readline()"), 1);
  ASSERT_TRUE(group.start(folder_, seconds(30)).ok());
  EXPECT_EQ(group.run(4096, 2, seconds(30)).status().code(), Code::kCorrupt);
}

TEST(BenchStatistics, MedianAndP99) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(p99({1, 5, 2}), 5);
  std::vector<double> hundred;
  for (int i = 1; i <= 200; ++i) hundred.push_back(i);
  EXPECT_EQ(p99(hundred), 198);
}

TEST(BenchReport, RatioIsThePeersMedianOverOurs) {
  const BenchSamples ours{{1.0, 2.0, 3.0}, 4.0, 2};
  const auto result = bench_result(1'000'000'000, 2, &ours, {{"gloo", {{3.0}, 1.0, 1}}});
  EXPECT_EQ(result["tensorlane_s_median"], 2.0);
  EXPECT_EQ(result["cpu_s_per_gb"], 1.0);
  EXPECT_EQ(result["peers"]["gloo"]["ratio"], 1.5);
}

TEST(BenchReport, BytesBetweenHostsMustBeTcps) {
  EXPECT_TRUE(check_bytes_sent({{"tcp", 10}, {"local", 5}}, {{"tcp", 110}, {"local", 5}}, 100).ok());
  EXPECT_THAT(check_bytes_sent({{"tcp", 10}}, {{"tcp", 109}}, 100).to_string(), HasSubstr("tcp carried 99 bytes"));
  EXPECT_THAT(check_bytes_sent({{"tcp", 0}}, {{"tcp", 100}, {"local", 1}}, 100).to_string(),
              HasSubstr("transport local carried 1"));
}

TEST(BenchReport, AStatusWithoutCountersIsAnError) {
  const auto sent = bytes_sent_of_status(R"({"transports": {"tcp": {"bytes_sent": 7}}})", "x");
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->at("tcp"), 7u);
  for (const char* bad :
       {"", "[]", "{}", R"({"transports": {"tcp": {}}})", R"({"transports": {"tcp": {"bytes_sent": -1}}})"}) {
    EXPECT_EQ(bytes_sent_of_status(bad, "x").status().code(), Code::kVersionMismatch) << bad;
  }
}

}  // namespace
}  // namespace tensorlane::cli
