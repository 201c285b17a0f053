// Clocks that are told apart by what went between hosts, and the trace that is made of several timelines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "common/spans/span.h"
#include "monitor/timeline/clock_fit.h"
#include "monitor/timeline/event_reader.h"
#include "monitor/timeline/merge.h"

namespace tensorlane::timeline {
namespace {

using ::testing::HasSubstr;

// Operations between hosts whose clocks are ahead by these.
class Clocks {
 public:
  explicit Clocks(std::vector<std::int64_t> ahead) : ahead_(std::move(ahead)) {}
  void send(std::size_t from, std::size_t to, std::int64_t takes) {
    const std::uint64_t mixed = ++next_ * 0x9e3779b97f4a7c15ull;
    const OperationKey key{mixed, mixed ^ (mixed >> 29)};
    now_ += 1'000'000;
    fit.add(key, true, from, now_ + ahead_[from]);
    fit.add(key, false, to, now_ + takes + ahead_[to]);
  }
  ClockFit fit;

 private:
  std::vector<std::int64_t> ahead_;
  std::uint64_t next_ = 0;
  std::int64_t now_ = 0;
};

TEST(ClockFit, OfTwoHostsItIsTheMiddleOfTheLeastDifferences) {
  Clocks clocks({0, 5'000'000});
  for (const std::int64_t takes : {900, 300, 500}) clocks.send(0, 1, takes);
  for (const std::int64_t takes : {800, 100, 400}) clocks.send(1, 0, takes);
  const std::vector<Offset> offsets = clocks.fit.fit(2);
  EXPECT_EQ(offsets[0].offset, 0);
  EXPECT_EQ(offsets[1].offset, 5'000'000 + (300 - 100) / 2);
  EXPECT_EQ(offsets[1].error, (300 + 100) / 2);
  EXPECT_EQ(offsets[1].reference, 0u);
  EXPECT_EQ(offsets[1].operations, 6u);
  EXPECT_TRUE(offsets[0].matched && offsets[1].matched);
  EXPECT_EQ(clocks.fit.moved(), 0);
}

TEST(ClockFit, OffsetsGoAlongChainsAndRings) {
  Clocks chain({0, 1000'000, -2000'000, 7});
  for (const auto& [a, b] : {std::pair(0, 1), {1, 2}}) {
    chain.send(std::size_t(a), std::size_t(b), 200);
    chain.send(std::size_t(b), std::size_t(a), 200);
  }
  chain.send(0, 3, 100);  // one way alone
  const std::vector<Offset> offsets = chain.fit.fit(4);
  EXPECT_EQ(offsets[2].offset, -2000'000);
  EXPECT_EQ(offsets[2].error, 400) << "the errors add up";
  EXPECT_FALSE(offsets[3].matched);
  EXPECT_EQ(offsets[3].offset, 0) << "its wall clock, as it is";
  Clocks ring({0, 1000'000, -2000'000});
  for (std::size_t host = 0; host < 3; ++host) ring.send(host, (host + 1) % 3, 100);
  for (std::size_t host = 0; const Offset& one : ring.fit.fit(3)) {
    const std::int64_t truth = std::vector<std::int64_t>{0, 1000'000, -2000'000}[host++];
    EXPECT_TRUE(one.matched);
    EXPECT_LE(std::abs(one.offset - truth), one.error);
    EXPECT_LE(one.error, 150);
  }
}

TEST(ClockFit, SaysWhenClocksHaveMoved) {
  ClockFit fit;
  fit.add({1, 1}, true, 0, 0);
  fit.add({1, 1}, false, 1, 100);
  fit.add({2, 2}, true, 1, 1'000'000);
  fit.add({2, 2}, false, 0, 950'000);  // now the clock of host 1 is 50 us further
  fit.fit(2);
  EXPECT_GT(fit.moved(), 0);
}

// An end that two files tell of is one end; where they differ much, nobody knows which is right.
TEST(ClockFit, AnEndThatIsToldOfTwiceCountsWhereBothAreAlike) {
  for (const bool sent : {false, true}) {
    for (const std::int64_t apart : {500'000, 2'000'000}) {
      Clocks clocks({0, 5'000'000});
      clocks.send(0, 1, 300);
      clocks.send(1, 0, 300);
      const OperationKey key{64, 64};
      clocks.fit.add(key, true, 0, 70'000'000);
      clocks.fit.add(key, false, 1, 75'000'100);
      clocks.fit.add(key, sent, sent ? 0 : 1, (sent ? 70'000'000 : 75'000'100) + apart);
      const Offset offset = clocks.fit.fit(2)[1];
      const bool counts = apart < 1'000'000;
      EXPECT_EQ(offset.operations, counts ? 3u : 2u) << sent;
      EXPECT_EQ(offset.error, counts ? 200 : 300) << sent;
      EXPECT_EQ(offset.offset, counts ? 4'999'900 : 5'000'000) << sent;
    }
  }
}

TEST(ClockFit, KeepsOnlySoMany) {
  Clocks clocks({0, 5'000'000});
  for (std::size_t i = 0; i < ClockFit::kMostKept + 10000; ++i) clocks.send(i % 2, 1 - i % 2, 300);
  EXPECT_GT(clocks.fit.one_in(), 1u);
  const std::vector<Offset> offsets = clocks.fit.fit(2);
  EXPECT_EQ(offsets[1].offset, 5'000'000);
  EXPECT_EQ(offsets[1].error, 300);
  EXPECT_LE(offsets[1].operations, ClockFit::kMostKept);
}

class MergeTest : public ::testing::Test {
 protected:
  MergeTest() { std::filesystem::create_directories(folder_); }
  ~MergeTest() override { std::filesystem::remove_all(folder_); }

  // `boot` and `ahead` of the clock of its spans.
  std::string timeline(const std::string& name, const std::string& host, int number, std::int64_t ahead,
                       const std::vector<spans::Span>& spans, const std::string& boot = "boot") const {
    const spans::Source source{host, number, {"urgent", "bulk"}, {43, 27}, boot, ahead};
    std::string text = spans::header(source);
    for (const spans::Span& span : spans) spans::append_event(source, span, &text);
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  static spans::Span end(bool sent, std::int64_t time, std::uint64_t sequence, const char* peer,
                         std::int64_t length = 10) {
    return {.begin = time - length,
            .length = length,
            .phase = sent ? spans::Phase::kQueue : spans::Phase::kReceive,
            .cls = 1,
            .epoch = 3,
            .sequence = sequence,
            .tensor = "fc1,\"args\":",
            .job = "train",
            .peer = peer};
  }
  Result<MergeSummary> merged(const std::vector<std::string>& files, MergeOptions options = {}) {
    options.files = files;
    options.out = out_;
    return merge(options);
  }
  std::vector<nlohmann::json> written(const std::string& phase) const {
    std::ifstream in(out_);
    std::vector<nlohmann::json> events;
    const nlohmann::json trace = nlohmann::json::parse(in);
    for (const auto& event : trace.at("traceEvents")) {
      if (event["ph"] == phase) events.push_back(event);
    }
    return events;
  }
  const std::string folder_ = std::filesystem::temp_directory_path() / ("tl-merge-" + std::to_string(getpid()));
  const std::string out_ = folder_ + "/out.json";
};

TEST_F(MergeTest, ArrowsHoldToBothEnds) {
  const std::string h0 =
      timeline("h0.json", "h0", 0, 1'000'000'000, {end(true, 1000, 1, "h1"), end(false, 5200, 2, "h1")});
  const std::string h1 = timeline("h1.json", "h1", 1, 1'000'050'000,
                                  {end(false, 1300, 1, "h0"), end(true, 5000, 2, "h0"), end(true, 9000, 3, "h0")});
  const Result<MergeSummary> summary = merged({h1, h0});
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->arrows, 2u);
  EXPECT_EQ(summary->alone, 1u);
  ASSERT_EQ(summary->hosts.size(), 2u);
  EXPECT_EQ(summary->hosts[0].name, "h0") << "in the order of the fabric file";
  EXPECT_EQ(std::abs(summary->hosts[0].clock.offset - summary->hosts[1].clock.offset), 50'050);
  std::map<int, nlohmann::json> begins;
  for (const auto& begin : written("s")) begins[begin["id"]] = begin;
  for (const auto& arrival : written("f")) {
    EXPECT_EQ(arrival["bp"], "e");
    EXPECT_NEAR(arrival["ts"].get<double>() - begins[arrival["id"]]["ts"].get<double>(), 0.25, 0.001);
    EXPECT_NE(arrival["pid"], begins[arrival["id"]]["pid"]);
  }
  for (const auto& span : written("X")) EXPECT_EQ(span["args"]["tensor"], "fc1,\"args\":");
}

// An operation that an epoch has left undone is not the one of the same number in the next epoch.
TEST_F(MergeTest, NoArrowLeadsFromOneEpochToAnother) {
  std::vector<spans::Span> sent{end(true, 1000, 1, "h1"), end(true, 5000, 1, "h1")};
  sent[1].epoch = 4;
  spans::Span received = end(false, 5300, 1, "h0");
  received.epoch = 4;
  const std::string h0 = timeline("h0.json", "h0", 0, 0, sent), h1 = timeline("h1.json", "h1", 1, 0, {received});
  const Result<MergeSummary> summary = merged({h0, h1});
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->arrows, 1u);
  EXPECT_EQ(summary->alone, 1u);
  ASSERT_EQ(written("s").size(), 1u);
  EXPECT_NEAR(written("f")[0]["ts"].get<double>() - written("s")[0]["ts"].get<double>(), 0.3, 0.01);
}

// FILE.1 and FILE of one host, between which its wall clock was set.
TEST_F(MergeTest, FilesOfOneBootAreByOneClock) {
  const std::string before = timeline("h0.json.1", "h0", 0, 1'000'000'000, {end(true, 1000, 1, "h1")});
  const std::string after = timeline("h0.json", "h0", 0, 9'000'000'000, {end(true, 2000, 2, "h1")});
  ASSERT_TRUE(merged({before, after}).ok());
  const auto spans = written("X");
  EXPECT_NEAR(spans[1]["ts"].get<double>() - spans[0]["ts"].get<double>(), 1.0, 0.001);
  const std::string other = timeline("boot2.json", "h0", 0, 9'000'000'000, {end(true, 2000, 2, "h1")}, "another");
  const Result<MergeSummary> two = merged({before, other});
  EXPECT_EQ(two->hosts.size(), 2u);
  EXPECT_FALSE(two->hosts[1].clock.matched);
}

TEST_F(MergeTest, SpansAtTheSameTimeHaveRowsOfTheirOwn) {
  const std::string h0 =
      timeline("h0.json", "h0", 0, 0,
               {end(true, 1000, 1, "h1", 900), end(true, 1000, 2, "h1", 500), end(true, 2000, 3, "h1", 500)});
  ASSERT_TRUE(merged({h0}).ok());
  const auto spans = written("X");
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  EXPECT_EQ(spans[2]["tid"], spans[0]["tid"]) << "a row that is free again";
}

TEST_F(MergeTest, LeavesOutWhatIsNotAskedFor) {
  std::vector<spans::Span> spans;
  for (std::uint64_t i = 1; i <= 10; ++i) spans.push_back(end(true, static_cast<std::int64_t>(i * 1000), i, "h1"));
  const std::string h0 = timeline("h0.json", "h0", 0, 0, spans);
  MergeOptions options;
  options.last = nanoseconds(2500);
  EXPECT_EQ(merged({h0}, options)->spans, 3u);
  options.last.reset();
  options.since = 3000;
  options.until = 5000;
  EXPECT_EQ(merged({h0}, options)->spans, 3u);
  options.until.reset();
  options.since = 8000;
  for (const std::int64_t last : {1000, 2000, 5000}) {  // what both ask for
    options.last = nanoseconds(last);
    EXPECT_EQ(merged({h0}, options)->spans, last == 1000 ? 2u : 3u) << last;
  }
  options.last.reset();
  options.since = options.until = 1'000'000;
  EXPECT_THAT(merged({h0}, options).status().to_string(), HasSubstr("no span is in this time"));
}

TEST_F(MergeTest, AFileThatIsCutOffIsReadAsFarAsItGoes) {
  const std::string h0 = timeline("h0.json", "h0", 0, 0, {end(true, 1000, 1, "h1"), end(true, 2000, 2, "h1")});
  for (const std::size_t less : {0, 1, 2, 3, 50}) {
    std::filesystem::resize_file(h0, std::filesystem::file_size(h0) - less);
    const Result<MergeSummary> summary = merged({h0});
    ASSERT_TRUE(summary.ok()) << summary.status().to_string();
    EXPECT_GE(summary->spans, 1u);
    EXPECT_THAT(summary->truncated, ::testing::ElementsAre(h0));
  }
  std::ofstream(h0, std::ios::app) << "\n{\"ph\":\"X\"}\n";
  EXPECT_THAT(merged({h0}).status().to_string(), HasSubstr(h0 + ":7, byte "));
}

TEST_F(MergeTest, AFileIsNotReadTwice) {
  const std::string h0 = timeline("h0.json", "h0", 0, 0, {end(true, 1000, 1, "h1")});
  EXPECT_THAT(merged({h0, h0}).status().to_string(), HasSubstr("the file is given twice"));
  std::filesystem::create_symlink(h0, folder_ + "/link.json");
  EXPECT_THAT(merged({h0, folder_ + "/link.json"}).status().to_string(), HasSubstr("the file is given twice"));
}

TEST_F(MergeTest, HostsHaveABound) {
  const std::string many = folder_ + "/many.json";
  std::ofstream out(many);
  out << "[\n";
  for (int i = 0; i < 8200; ++i)
    out << R"({"ph":"M","name":"process_name","pid":)" << i << R"(,"args":{"name":"host h)" << i << "\"}},\n"
        << R"({"ph":"X","name":"QUEUE","pid":)" << i << R"(,"tid":1,"ts":1,"dur":1,"args":{}},)"
        << "\n";
  out << "{}]\n";
  out.close();
  EXPECT_THAT(merged({many}).status().to_string(), HasSubstr("more than 8192 hosts and boots"));
}

TEST_F(MergeTest, TimesAreNumbersThatFit) {
  for (const char* wrong :
       {R"("ts":"17","dur":1)", R"("ts":17,"dur":"1")", R"("ts":1e300,"dur":1)", R"("ts":17,"dur":9000000000000001)",
        R"("ts":17,"dur":-9000000000000001)", R"("ts":18446744073709551615,"dur":1)", R"("ts":17,"dur":1,"pid":"1")"}) {
    const std::string h0 = timeline("h0.json", "h0", 0, 0, {end(true, 1000, 1, "h1")});
    std::ofstream(h0, std::ios::app) << "\n{\"ph\":\"X\"," << wrong << "}\n";
    const Result<MergeSummary> summary = merged({h0});
    EXPECT_THAT(summary.status().to_string(), HasSubstr("no event of a timeline: its '")) << wrong;
  }
}

TEST_F(MergeTest, AFullDiskLeavesNoFile) {
  const std::string h0 = timeline("h0.json", "h0", 0, 0, {end(true, 1000, 1, "h1")});
  MergeOptions options;
  options.files = {h0};
  options.out = folder_ + "/no/such/folder.json";
  EXPECT_THAT(merge(options).status().to_string(), HasSubstr("cannot write the merged timeline"));
}

}  // namespace
}  // namespace tensorlane::timeline
