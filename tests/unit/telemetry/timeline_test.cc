// The timeline, through its public face: real files, a full disk.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/telemetry/timeline.h"

namespace tensorlane::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TimelineTest : public ::testing::Test {
 protected:
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("tl-timeline-" + std::to_string(getpid()) + ".json")).string();
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".1");
  }
  static std::string text_of(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static TimelineConfig config() { return {"h0", 0, {"urgent", "bulk"}, {43, 27}, 16}; }
  static ports::TraceSpan span() {
    return {.begin = Time(5000),
            .length = microseconds(2),
            .job = JobId(9),
            .tensor = TensorId(1),
            .sequence = Sequence(3),
            .cls = ClassId(1),
            .phase = ports::TraceSpan::Phase::kQueue,
            .peer = HostIndex(2),
            .bytes = 77};
  }
};

TEST_F(TimelineTest, WritesChromeTraceEvents) {
  TimelineRecorder recorder(config());
  EXPECT_FALSE(recorder.enabled());
  ASSERT_TRUE(recorder.start(path_).ok());
  const auto now = [] {
    return std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const auto monotonic = std::chrono::steady_clock::now().time_since_epoch();
  recorder.begin_job(JobId(9), Epoch(1), "train", {"h0", "h1", "h2"});
  recorder.name(JobId(9), TensorId(1), "fc1.\"weight\"");
  ports::TraceSpan recorded = span();
  recorded.begin = Time(std::chrono::duration_cast<std::chrono::nanoseconds>(monotonic).count());
  recorder.record(recorded);
  recorder.stop();
  std::ifstream in(path_);
  const nlohmann::json events = nlohmann::json::parse(in);
  nlohmann::json found;
  for (const auto& event : events) {
    if (event.value("ph", "") == "X") found = event;
  }
  EXPECT_EQ(found["name"], "QUEUE");
  EXPECT_NEAR(found["ts"], now(), 60e6) << "since 1970, so that hosts can be laid beside each other";
  EXPECT_EQ(found["dur"], 2.0);
  EXPECT_EQ(found["args"]["tensor"], "fc1.\"weight\"");
  EXPECT_EQ(found["args"]["class"], "bulk");
  EXPECT_EQ(found["args"]["dscp"], 27);
  EXPECT_EQ(found["args"]["bytes"], 77);
  EXPECT_EQ(found["args"]["peer"], "h2");
  EXPECT_EQ(found["args"]["job"], "train");
}

// The rows of a trace are classes; phases have names of their own, and the list has an end.
TEST_F(TimelineTest, SaysWhatEachSpanIs) {
  using Phase = ports::TraceSpan::Phase;
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  for (const Phase phase : {Phase::kWaitForData, Phase::kOperation, Phase::kQueue, Phase::kReduce, Phase::kCopy}) {
    ports::TraceSpan recorded = span();
    recorded.phase = phase;
    recorder.record(recorded);
  }
  recorder.stop();
  const std::string text = text_of(path_);
  EXPECT_EQ(text.substr(text.size() - 4), "{}]\n");
  std::vector<std::string> names;
  for (const auto& event : nlohmann::json::parse(text)) {
    if (event.value("ph", "") != "X") continue;
    names.push_back(event["name"]);
    EXPECT_EQ(event["tid"], 1) << "of bulk";
    EXPECT_EQ(event["pid"], 0);
    EXPECT_EQ(event["args"]["sequence"], 3);
    EXPECT_EQ(event["args"].contains("peer"), names.back() == "QUEUE");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"WAIT_FOR_DATA", "ALLREDUCE", "QUEUE", "REDUCE", "MEMCPY"}));
}

TEST_F(TimelineTest, WritesNamesThatAreNoUtf8) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  recorder.begin_job(JobId(9), Epoch(1), "train", {"h0"});
  recorder.name(JobId(9), TensorId(1),
                "gr\xf6\xdf"
                "e");
  recorder.record(span());
  recorder.stop();
  std::ifstream in(path_);
  const nlohmann::json events = nlohmann::json::parse(in);
  EXPECT_EQ(events.at(events.size() - 2)["args"]["tensor"],
            "gr\uFFFD\uFFFD"
            "e");
}

// One event a line, so that files of several hosts are merged by their lines: telemetry/README.md says how.
TEST_F(TimelineTest, IsOneEventALine) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  recorder.record(span());
  recorder.stop();
  std::istringstream lines(text_of(path_));
  int events = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line == "[" || line == "{}]") continue;
    ASSERT_THAT(line, ::testing::EndsWith(","));
    line.pop_back();
    EXPECT_TRUE(nlohmann::json::parse(line).contains("ph")) << line;
    ++events;
  }
  EXPECT_EQ(events, 4);
}

TEST_F(TimelineTest, GrowsToItsLimitAndBeginsANewFile) {
  TimelineConfig small = config();
  small.capacity = 64;
  small.limit = Bytes(4000);
  TimelineRecorder recorder(small);
  ASSERT_TRUE(recorder.start(path_).ok());
  for (int i = 0; i < 40; ++i) {
    recorder.record(span());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  recorder.stop();
  EXPECT_FALSE(recorder.broken());
  std::size_t spans = 0;
  for (const std::string& file : {path_, path_ + ".1"}) {
    const std::string text = text_of(file);
    EXPECT_LE(text.size(), 4100u) << file;
    for (const auto& event : nlohmann::json::parse(text)) spans += event.value("ph", "") == "X" ? 1 : 0;
  }
  EXPECT_GE(spans, 10u);
  EXPECT_LE(spans, 40u);
}

TEST_F(TimelineTest, ARestartKeepsTheFileThatWasThere) {
  for (const char* host : {"first", "second"}) {
    TimelineConfig named = config();
    named.host = host;
    TimelineRecorder recorder(named);
    ASSERT_TRUE(recorder.start(path_).ok());
    recorder.stop();
  }
  EXPECT_THAT(text_of(path_ + ".1"), HasSubstr("host first"));
  EXPECT_THAT(text_of(path_), HasSubstr("host second"));
}

// A second daemon with the same file, started by mistake, must not take it from the first.
TEST_F(TimelineTest, IsWrittenByOneAtATime) {
  TimelineRecorder first(config()), second(config());
  ASSERT_TRUE(first.start(path_).ok());
  EXPECT_EQ(second.start(path_).to_string(), "cannot write the timeline: another process writes it: " + path_ +
                                                 ": end it, e.g. another tensorlaned, or choose another path");
  EXPECT_FALSE(second.enabled());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
  first.begin_job(JobId(9), Epoch(1), "train", {"h0", "h1", "h2"});
  first.record(span());
  first.stop();
  EXPECT_THAT(text_of(path_), HasSubstr("train"));
  EXPECT_TRUE(second.start(path_).ok()) << "now nobody writes it";
}

TEST_F(TimelineTest, NamesGoWithTheirJobAndAreNotKeptWhileItIsOff) {
  TimelineRecorder recorder(config());
  const auto name_all = [&](JobId job) {
    recorder.begin_job(job, Epoch(1), "train", {"h0"});
    for (std::uint32_t i = 0; i < 1000; ++i) recorder.name(job, TensorId(i), std::string(200, 'x').c_str());
  };
  name_all(JobId(9));
  EXPECT_EQ(recorder.names(), 0u) << "it is off";
  ASSERT_TRUE(recorder.start(path_).ok());
  name_all(JobId(9));
  name_all(JobId(10));
  EXPECT_EQ(recorder.names(), 2000u);
  recorder.record(span());
  recorder.end_job(JobId(9), Epoch(1));
  for (int i = 0; i < 300 && recorder.names() > 1000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(recorder.names(), 1000u);
  recorder.stop();
  EXPECT_THAT(text_of(path_), HasSubstr("xxxxx")) << "what was recorded before the job's end has its name";
}

// Tensors that were unregistered leave their numbers to others.
TEST_F(TimelineTest, ASpanHasTheNameThatItsTensorHadThen) {
  constexpr int kNames = 50;
  TimelineConfig roomy = config();
  roomy.capacity = kNames;
  TimelineRecorder recorder(roomy);
  ASSERT_TRUE(recorder.start(path_).ok());
  recorder.begin_job(JobId(9), Epoch(1), "train", {"h0"});
  for (int i = 0; i < kNames; ++i) {
    recorder.name(JobId(9), TensorId(1), fmt::format("tensor-{}", i).c_str());
    recorder.record(span());
  }
  for (int i = 0; i < 300 && recorder.names() > 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(recorder.names(), 1u) << "what is written needs no former name";
  recorder.stop();
  std::ifstream in(path_);
  int next = 0;
  for (const auto& event : nlohmann::json::parse(in)) {
    if (event.value("ph", "") != "X") continue;
    EXPECT_EQ(event["args"]["tensor"], fmt::format("tensor-{}", next++));
  }
  EXPECT_EQ(next, kNames);
}

// Tensors that come and go while the writer waits for its disk.
TEST_F(TimelineTest, KeepsOnlySoManyNamesOfTensorsThatAreGone) {
  TimelineConfig small = config();
  small.capacity = 6;
  constexpr std::uint32_t kOthers = 50;
  std::string written;
  for (int attempt = 0; attempt < 20 && written.find("\"tensor 1\"") == std::string::npos; ++attempt) {
    TimelineRecorder recorder(small);
    ASSERT_TRUE(recorder.start(path_).ok());
    recorder.begin_job(JobId(9), Epoch(1), "train", {"h0"});
    recorder.name(JobId(9), TensorId(1), "first");
    recorder.record(span());
    recorder.name(JobId(9), TensorId(1), "second");
    recorder.record(span());
    for (std::uint32_t i = 2; i <= kOthers; ++i) {
      recorder.name(JobId(9), TensorId(i), "former");
      recorder.name(JobId(9), TensorId(i), "latter");
    }
    EXPECT_LE(recorder.names(), kOthers + small.capacity);
    recorder.stop();
    written = text_of(path_);
  }
  EXPECT_THAT(written, HasSubstr("\"tensor 1\"")) << "an older name goes first";
  EXPECT_THAT(written, HasSubstr("\"second\"")) << "the other one has it still";
}

// A job with the key of another begins before the lane has retired that one.
TEST_F(TimelineTest, TheEndOfAJobTakesNoNamesOfTheNextOneOfItsKey) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  recorder.begin_job(JobId(9), Epoch(1), "first", {"h0"});
  recorder.name(JobId(9), TensorId(1), "of the first");
  recorder.begin_job(JobId(9), Epoch(2), "second", {"h0"});
  recorder.name(JobId(9), TensorId(1), "of the second");
  recorder.end_job(JobId(9), Epoch(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the writer looks every 50 ms
  EXPECT_EQ(recorder.names(), 1u);
  recorder.record(span());
  recorder.end_job(JobId(9), Epoch(2));
  for (int i = 0; i < 300 && recorder.names() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(recorder.names(), 0u);
  recorder.stop();
  EXPECT_THAT(text_of(path_), HasSubstr("of the second"));
}

TEST_F(TimelineTest, IsNotWrittenToWhatOthersPutInItsPlace) {
  TimelineRecorder recorder(config());
  EXPECT_EQ(recorder.start("/dev/full").to_string(),
            "cannot write the timeline: it is no regular file: /dev/full: choose a path that this process may write");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(recorder.start(path_).to_string(), HasSubstr("it is no regular file")) << "and nobody waits";
  std::filesystem::remove(path_);
  std::ofstream(path_ + ".1") << "somebody's";
  std::filesystem::create_symlink(path_ + ".1", path_);
  EXPECT_THAT(recorder.start(path_).to_string(), HasSubstr("it is a symbolic link"));
  EXPECT_EQ(text_of(path_ + ".1"), "somebody's");
  EXPECT_FALSE(recorder.enabled());
}

TEST_F(TimelineTest, IsReadByItsOwnerAlone) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, mode_t{0600});
}

TEST_F(TimelineTest, FullDiskAtStartIsAClearError) {
  TimelineRecorder recorder(config());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 16;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = recorder.start(path_);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.to_string(),
            "cannot write the timeline: File too large: " + path_ + ": free space on the disk or choose another path");
  EXPECT_FALSE(recorder.enabled());
}

// A disk that fills up while recording: a limit on the file's size fails the same write() in the same way.
TEST_F(TimelineTest, FullDiskLaterStopsTheTimelineOnly) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int i = 0; i < 16; ++i) recorder.record(span());
  for (int i = 0; i < 300 && !recorder.broken(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(recorder.broken());
  EXPECT_FALSE(recorder.enabled());
  recorder.record(span());
  recorder.stop();
}

TEST_F(TimelineTest, UnwritablePathIsAClearError) {
  TimelineRecorder recorder(config());
  const Status status = recorder.start("/nowhere/t.json");
  EXPECT_EQ(status.to_string(),
            "cannot write the timeline: No such file or directory: /nowhere/t.json: choose a path that this process "
            "may write");
}

TEST_F(TimelineTest, DropsAndCountsWhatDoesNotFit) {
  TimelineRecorder recorder(config());
  ASSERT_TRUE(recorder.start(path_).ok());
  for (int i = 0; i < 1000000 && recorder.dropped() == 0; ++i) recorder.record(span());
  EXPECT_GT(recorder.dropped(), 0u);
}

}  // namespace
}  // namespace tensorlane::telemetry
