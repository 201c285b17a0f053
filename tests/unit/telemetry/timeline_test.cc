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
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/json/json.h"
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
  static SpanStoreConfig config(Bytes memory = Bytes(0)) {
    SpanStoreConfig config;
    config.source.host = "h0";
    config.source.class_names = {"urgent", "bulk"};
    config.source.class_dscps = {43, 27};
    config.memory = memory;
    return config;
  }
  static ports::TraceSpan span() {
    return {.begin = SpanStore::now(),
            .length = microseconds(2),
            .job = JobId(9),
            .tensor = TensorId(1),
            .sequence = Sequence(3),
            .cls = ClassId(1),
            .phase = ports::TraceSpan::Phase::kQueue,
            .peer = HostIndex(2),
            .bytes = 77,
            .slice = 4,
            .grant = 1u << 31,
            .offset = 8192};
  }
  void begin_job(Epoch epoch, const std::string& name) {
    lane_.begin_job({JobId(9), epoch, name, 1000, {"h0", "h1", "h2"}});
  }

  SpanStore store_{config()};
  ports::Timeline& lane_ = store_.lane(0);
};

TEST_F(TimelineTest, WritesChromeTraceEvents) {
  TimelineRecorder recorder(store_);
  EXPECT_FALSE(recorder.enabled());
  ASSERT_TRUE(recorder.start(path_).ok());
  const auto now = [] {
    return std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  begin_job(Epoch(1), "train");
  lane_.name(JobId(9), TensorId(1), "fc1.\"weight\"");
  lane_.record(span());
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
  EXPECT_EQ(found["args"]["epoch"], 1);
  EXPECT_EQ(found["args"]["tensor_id"], 1);
  EXPECT_EQ(found["args"]["slice"], 4);
  EXPECT_EQ(found["args"]["offset"], 8192);
  EXPECT_EQ(found["args"]["grant"], 1u << 31);
}

// The rows of a trace are classes; phases have names of their own, and the list has an end.
TEST_F(TimelineTest, SaysWhatEachSpanIs) {
  using Phase = ports::TraceSpan::Phase;
  TimelineRecorder recorder(store_);
  ASSERT_TRUE(recorder.start(path_).ok());
  for (const Phase phase :
       {Phase::kWaitForData, Phase::kOperation, Phase::kQueue, Phase::kReduce, Phase::kCopy, Phase::kReceive}) {
    ports::TraceSpan recorded = span();
    recorded.phase = phase;
    lane_.record(recorded);
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
    EXPECT_EQ(event["args"].contains("peer"), names.back() == "QUEUE" || names.back() == "RECEIVE");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"WAIT_FOR_DATA", "ALLREDUCE", "QUEUE", "REDUCE", "MEMCPY", "RECEIVE"}));
}

TEST_F(TimelineTest, WritesNamesThatAreNoUtf8) {
  TimelineRecorder recorder(store_);
  ASSERT_TRUE(recorder.start(path_).ok());
  begin_job(Epoch(1), "train");
  lane_.name(JobId(9), TensorId(1),
             "gr\xf6\xdf"
             "e");
  lane_.record(span());
  recorder.stop();
  std::ifstream in(path_);
  const nlohmann::json events = nlohmann::json::parse(in);
  EXPECT_EQ(events.at(events.size() - 2)["args"]["tensor"],
            "gr\uFFFD\uFFFD"
            "e");
}

// One event a line, so that files of several hosts are merged by their lines: telemetry/README.md says how.
TEST_F(TimelineTest, IsOneEventALine) {
  TimelineRecorder recorder(store_);
  ASSERT_TRUE(recorder.start(path_).ok());
  lane_.record(span());
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
  EXPECT_EQ(events, 5);
}

TEST_F(TimelineTest, GrowsToItsLimitAndBeginsANewFile) {
  TimelineRecorder recorder(store_, Bytes(4000));
  ASSERT_TRUE(recorder.start(path_).ok());
  for (int i = 0; i < 40; ++i) {
    lane_.record(span());
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
    SpanStoreConfig named = config();
    named.source.host = host;
    SpanStore store(named);
    TimelineRecorder recorder(store);
    ASSERT_TRUE(recorder.start(path_).ok());
    recorder.stop();
  }
  EXPECT_THAT(text_of(path_ + ".1"), HasSubstr("host first"));
  EXPECT_THAT(text_of(path_), HasSubstr("host second"));
}

// A second daemon with the same file, started by mistake, must not take it from the first.
TEST_F(TimelineTest, IsWrittenByOneAtATime) {
  SpanStore other(config());
  TimelineRecorder first(store_), second(other);
  ASSERT_TRUE(first.start(path_).ok());
  EXPECT_EQ(second.start(path_).to_string(), "cannot write the timeline: another process writes it: " + path_ +
                                                 ": end it, e.g. another tensorlaned, or choose another path");
  EXPECT_FALSE(second.enabled());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
  begin_job(Epoch(1), "train");
  lane_.record(span());
  first.stop();
  EXPECT_THAT(text_of(path_), HasSubstr("train"));
  EXPECT_TRUE(second.start(path_).ok()) << "now nobody writes it";
}

// Nobody needs them.
TEST_F(TimelineTest, KeepsNoNamesWhileItIsOffAndNoSpansAreKept) {
  TimelineRecorder recorder(store_);
  begin_job(Epoch(1), "train");
  lane_.name(JobId(9), TensorId(1), "fc1");
  EXPECT_FALSE(lane_.enabled());
  EXPECT_EQ(store_.names().names(), 0u);
  ASSERT_TRUE(recorder.start(path_).ok());
  EXPECT_TRUE(lane_.enabled());
  begin_job(Epoch(1), "train");
  lane_.name(JobId(9), TensorId(1), "fc1");
  EXPECT_EQ(store_.names().names(), 1u);
  recorder.stop();
  EXPECT_FALSE(lane_.enabled());
}

// Lanes write rings of their own, and one file has them all.
TEST_F(TimelineTest, HasTheSpansOfAllLanes) {
  SpanStoreConfig two = config(mib(1));
  two.lanes = 2;
  SpanStore store(two);
  TimelineRecorder recorder(store);
  store.lane(1).record(span());
  ASSERT_TRUE(recorder.start(path_).ok());
  constexpr int kSpans = 2000;
  std::vector<std::thread> lanes;
  for (std::size_t lane = 0; lane < 2; ++lane) {
    lanes.emplace_back([&store, lane] {
      for (int i = 0; i < kSpans; ++i) store.lane(lane).record(span());
    });
  }
  for (std::thread& lane : lanes) lane.join();
  recorder.stop();
  EXPECT_EQ(recorder.recorded(), 2u * kSpans) << "and not what was there before it began";
  EXPECT_EQ(recorder.dropped(), 0u);
}

TEST_F(TimelineTest, IsNotWrittenToWhatOthersPutInItsPlace) {
  TimelineRecorder recorder(store_);
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
  TimelineRecorder recorder(store_);
  ASSERT_TRUE(recorder.start(path_).ok());
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, mode_t{0600});
}

TEST_F(TimelineTest, FullDiskAtStartIsAClearError) {
  TimelineRecorder recorder(store_);
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
  TimelineRecorder recorder(store_);
  ASSERT_TRUE(recorder.start(path_).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int i = 0; i < 16; ++i) lane_.record(span());
  for (int i = 0; i < 300 && !recorder.broken(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(recorder.broken());
  EXPECT_FALSE(recorder.enabled());
  lane_.record(span());
  recorder.stop();
}

TEST_F(TimelineTest, UnwritablePathIsAClearError) {
  TimelineRecorder recorder(store_);
  const Status status = recorder.start("/nowhere/t.json");
  EXPECT_EQ(status.to_string(),
            "cannot write the timeline: No such file or directory: /nowhere/t.json: choose a path that this process "
            "may write");
}

TEST_F(TimelineTest, CountsWhatALaneHasOverwritten) {
  SpanStore store(config(Bytes(64 * SpanRing::kSpanBytes)));
  TimelineRecorder recorder(store);
  ASSERT_TRUE(recorder.start(path_).ok());
  constexpr int kSpans = 100000;
  for (int i = 0; i < kSpans; ++i) store.lane(0).record(span());
  recorder.stop();
  EXPECT_GT(recorder.dropped(), 0u);
  EXPECT_GT(recorder.recorded(), 0u);
  EXPECT_EQ(recorder.recorded() + recorder.dropped(), std::uint64_t{kSpans});
}

}  // namespace
}  // namespace tensorlane::telemetry
