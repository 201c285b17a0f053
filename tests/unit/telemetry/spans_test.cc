// The spans in memory: the ring that a lane overwrites, the names, and what a user is told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/json/json.h"
#include "common/spans/packed.h"
#include "daemon/telemetry/span_answers.h"
#include "daemon/telemetry/span_files.h"
#include "daemon/telemetry/span_names.h"
#include "daemon/telemetry/span_ring.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Phase = ports::TraceSpan::Phase;

// All of whose fields are told by its number.
ports::TraceSpan numbered(std::uint64_t n) {
  const auto low = static_cast<std::uint32_t>(n);
  return {.begin = Time(static_cast<std::int64_t>(n)),
          .length = Duration(static_cast<std::int64_t>(n * 3)),
          .job = JobId(n * 5),
          .tensor = TensorId(low),
          .sequence = Sequence(n | (std::uint64_t{1} << 40)),
          .cls = ClassId(static_cast<std::uint8_t>(n)),
          .phase = static_cast<Phase>(n % 5),
          .peer = HostIndex(static_cast<std::uint16_t>(n)),
          .bytes = low + 1,
          .slice = low + 2,
          .grant = low + 3,
          .offset = low + 4,
          .rail = RailIndex(static_cast<std::uint8_t>(n + 1)),
          .eager = n % 2 == 1};
}

bool same(const ports::TraceSpan& a, const ports::TraceSpan& b) {
  return a.begin == b.begin && a.length == b.length && a.job == b.job && a.tensor == b.tensor &&
         a.sequence == b.sequence && a.cls == b.cls && a.phase == b.phase && a.peer == b.peer && a.bytes == b.bytes &&
         a.slice == b.slice && a.grant == b.grant && a.offset == b.offset && a.rail == b.rail && a.eager == b.eager;
}

TEST(SpanRing, GivesBackWhatWasWrittenAndDropsTheOldest) {
  SpanRing ring(8);
  std::vector<ports::TraceSpan> out(100);
  std::uint64_t at = 0, lost = 0;
  EXPECT_EQ(ring.read(&at, out, &lost), 0u);
  for (std::uint64_t n = 0; n < 5; ++n) ring.push(numbered(n));
  ASSERT_EQ(ring.read(&at, out, &lost), 5u);
  for (std::uint64_t n = 0; n < 5; ++n) EXPECT_TRUE(same(out[n], numbered(n))) << n;
  EXPECT_EQ(ring.read(&at, out, &lost), 0u);
  for (std::uint64_t n = 5; n < 105; ++n) ring.push(numbered(n));
  const std::size_t count = ring.read(&at, out, &lost);
  EXPECT_GE(count, 7u);
  EXPECT_EQ(count + lost, 100u);
  for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(same(out[i], numbered(5 + lost + i)));
}

// No span that is read is half of one and half of another, however fast the lane overwrites them.
TEST(SpanRing, IsReadWholeWhileItIsOverwritten) {
  SpanRing ring(64);
  std::atomic<bool> stop{false};
  std::thread lane([&] {
    for (std::uint64_t n = 0; !stop.load(std::memory_order_relaxed); ++n) ring.push(numbered(n));
  });
  std::vector<ports::TraceSpan> out(16);
  std::uint64_t at = 0, lost = 0, seen = 0, torn = 0;
  while (seen < 20000) {
    const std::size_t count = ring.read(&at, out, &lost);
    for (std::size_t i = 0; i < count; ++i) {
      const auto n = static_cast<std::uint64_t>(out[i].begin.value);
      torn += same(out[i], numbered(n)) && n == at - count + i ? 0 : 1;
    }
    seen += count;
  }
  stop = true;
  lane.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(seen + lost, at);
}

class NamesTest : public ::testing::Test {
 protected:
  static ports::TraceJob job(std::uint64_t id, std::uint32_t epoch, const std::string& name,
                             std::uint32_t user = 1000) {
    return {JobId(id), Epoch(epoch), name, user, {"h0", "h1"}};
  }
  SpanNames::Of of(std::uint64_t id, std::uint32_t tensor, std::int64_t begin) const {
    ports::TraceSpan span;
    span.job = JobId(id);
    span.tensor = TensorId(tensor);
    span.begin = Time(begin);
    span.peer = HostIndex(1);
    return names_.of(std::span(&span, 1)).front();
  }
  SpanNames names_;
};

TEST_F(NamesTest, ASpanHasTheNamesThatThereWereWhenItBegan) {
  names_.begin(job(9, 1, "first"), Time(100));
  names_.name(JobId(9), TensorId(1), "a", Time(110));
  names_.name(JobId(9), TensorId(1), "b", Time(200));
  names_.end(JobId(9), Epoch(1), Time(300));
  names_.begin(job(9, 2, "second", 1001), Time(400));
  names_.name(JobId(9), TensorId(1), "c", Time(410));
  EXPECT_EQ(of(9, 1, 150).tensor, "a");
  EXPECT_EQ(of(9, 1, 250).tensor, "b");
  EXPECT_EQ(of(9, 1, 250).job, "first");
  EXPECT_EQ(of(9, 1, 450).tensor, "c");
  EXPECT_EQ(of(9, 1, 450).user, 1001u);
  EXPECT_EQ(of(9, 1, 450).peer, "h1");
  EXPECT_EQ(of(9, 2, 450).tensor, "tensor 2");
  EXPECT_EQ(of(8, 1, 450).user, std::nullopt);
  EXPECT_EQ(names_.user_of(JobId(9), Epoch(1)), 1000u);
  EXPECT_EQ(names_.user_of(JobId(9), Epoch(3)), std::nullopt);
}

TEST_F(NamesTest, ForgetsWhatIsGone) {
  names_.begin(job(9, 1, "first"), Time(100));
  names_.name(JobId(9), TensorId(1), "a", Time(110));
  names_.name(JobId(9), TensorId(1), "b", Time(200));
  names_.end(JobId(9), Epoch(1), Time(300));
  names_.begin(job(10, 2, "lives"), Time(100));
  names_.name(JobId(10), TensorId(1), "d", Time(110));
  EXPECT_EQ(names_.names(), 3u);
  names_.forget(Time(250));
  EXPECT_EQ(names_.names(), 2u) << "the former one";
  names_.forget(Time(400));
  EXPECT_EQ(names_.names(), 1u) << "the job's";
  EXPECT_EQ(of(9, 1, 250).job, "0000000000000009");
  EXPECT_EQ(of(10, 1, 450).tensor, "d");
  names_.end(JobId(10), Epoch(2), Time(500));
  names_.forget(Time(600));
  EXPECT_EQ(names_.bytes(), 0u);
}

// A user with very many tensors takes no names from others.
TEST_F(NamesTest, AreBoundedForEachUser) {
  names_.begin(job(9, 1, "many"), Time(1));
  names_.begin(job(10, 1, "few", 1001), Time(1));
  constexpr std::uint32_t kMany = 100000;
  for (std::uint32_t i = 0; i < kMany; ++i) names_.name(JobId(9), TensorId(i), std::string(1000, 'x'), Time(2));
  EXPECT_LE(names_.bytes(), SpanNames::kMostBytesOfUser + 1000) << "with what the other user has";
  EXPECT_EQ(of(9, 0, 3).tensor, std::string(SpanNames::kMostNameBytes, 'x'));
  EXPECT_EQ(of(9, kMany - 1, 3).tensor, fmt::format("tensor {}", kMany - 1));
  names_.name(JobId(10), TensorId(1), "mine", Time(2));
  EXPECT_EQ(of(10, 1, 3).tensor, "mine");
  for (std::uint32_t i = 0; i < kMany; ++i) names_.name(JobId(10), TensorId(1), fmt::format("mine {}", i), Time(3));
  EXPECT_LE(names_.bytes(), SpanNames::kMostBytes);
}

class StoreTest : public ::testing::Test {
 protected:
  static SpanStoreConfig config(Bytes memory = mib(1)) {
    SpanStoreConfig config;
    config.source.host = "h0";
    config.source.sort_index = 3;
    config.source.class_names = {"urgent", "bulk"};
    config.source.class_dscps = {43, 27};
    config.lanes = 2;
    config.memory = memory;
    return config;
  }
  StoreTest() {
    store_.lane(0).begin_job({JobId(9), Epoch(1), "mine", 1000, {"h0", "h1"}});
    store_.lane(0).name(JobId(9), TensorId(1), "fc1");
    store_.lane(1).begin_job({JobId(10), Epoch(1), "secret", 1001, {"h0", "h1"}});
    store_.lane(1).name(JobId(10), TensorId(1), "secret tensor");
  }
  void record(std::size_t lane, std::uint64_t job, Duration ago = {}, Phase phase = Phase::kQueue) {
    ports::TraceSpan span{.begin = Time(SpanStore::now().value - ago.value),
                          .length = microseconds(2),
                          .job = JobId(job),
                          .tensor = TensorId(1),
                          .sequence = Sequence(++sequence_),
                          .cls = ClassId(1),
                          .phase = phase,
                          .peer = HostIndex(1),
                          .bytes = 77};
    store_.lane(lane).record(span);
  }
  spans::Unpacked asked(const SpanStore::Filter& filter, Bytes most = mib(1)) const {
    Result<spans::Unpacked> unpacked = spans::unpack(store_.packed(filter, most));
    EXPECT_TRUE(unpacked.ok()) << unpacked.status().to_string();
    return std::move(*unpacked);
  }
  SpanStore store_{config()};
  std::uint64_t sequence_ = 0;
};

TEST_F(StoreTest, PackedSpansAreWhatWasRecorded) {
  record(0, 9);
  const spans::Unpacked answer = asked({});
  ASSERT_EQ(answer.spans.size(), 1u);
  const spans::Span& span = answer.spans.front();
  EXPECT_EQ(span.tensor, "fc1");
  EXPECT_EQ(span.job, "mine");
  EXPECT_EQ(span.peer, "h1");
  EXPECT_EQ(span.epoch, 1u);
  EXPECT_EQ(span.sequence, 1u);
  EXPECT_EQ(span.length, 2000);
  EXPECT_EQ(span.bytes, 77u);
  EXPECT_EQ(span.phase, spans::Phase::kQueue);
  EXPECT_NEAR(static_cast<double>(span.begin), static_cast<double>(SpanStore::now().value), 60e9);
  EXPECT_EQ(answer.source.host, "h0");
  EXPECT_EQ(answer.source.sort_index, 3);
  EXPECT_THAT(answer.source.class_names, ElementsAre("urgent", "bulk"));
}

TEST_F(StoreTest, AUserIsToldOfHisOwnJobs) {
  record(0, 9);
  record(1, 10);
  SpanStore::Filter mine;
  mine.user = 1000;
  EXPECT_EQ(asked(mine).spans.size(), 1u);
  const std::string text = store_.packed(mine, mib(1));
  EXPECT_THAT(text, HasSubstr("fc1"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("secret")));
  EXPECT_EQ(asked({}).spans.size(), 2u);
  SpanStore::Filter one;
  one.job = "secret";
  EXPECT_EQ(asked(one).spans.size(), 1u);
  one.user = 1000;
  EXPECT_EQ(asked(one).spans.size(), 0u);
}

TEST_F(StoreTest, LeavesOutWhatIsOldAndWhatIsTooMuch) {
  record(0, 9, seconds(100));
  record(0, 9, seconds(10));
  record(1, 9);
  EXPECT_EQ(asked({}).spans.size(), 2u) << "the last 30 s";
  SpanStore::Filter last;
  last.last = seconds(5);
  EXPECT_EQ(asked(last).spans.size(), 1u);
  for (int i = 0; i < 1000; ++i) record(0, 9);
  const spans::Unpacked some = asked({}, Bytes(2000));
  EXPECT_EQ(some.spans.size() + some.left_out, 1002u);
  EXPECT_LT(some.spans.size(), 100u);
  EXPECT_EQ(some.spans.front().sequence, 1003u) << "the newest ones stay";
}

TEST_F(StoreTest, ArrivalsOfATurnFollowEachOther) {
  for (const int length : {10, 30, 60}) {
    store_.lane(0).record({.begin = Time(SpanStore::now().value / 1000'000 * 1000'000),
                           .length = milliseconds(length),
                           .job = JobId(9),
                           .phase = Phase::kReceive});
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  for (const spans::Span& span : asked({}).spans) times.emplace_back(span.begin, span.begin + span.length);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_LE(times[2].second, times[1].first);
  EXPECT_LE(times[1].second, times[0].first);
}

TEST_F(StoreTest, RunsFewTasksOfAUserAtOnceAndThoseOfOthers) {
  std::promise<void> begin, over;
  auto go_on = begin.get_future().share();
  const auto wait = [go_on] { go_on.wait(); };
  EXPECT_TRUE(store_.later(7, wait));
  EXPECT_TRUE(store_.later(7, wait));
  EXPECT_FALSE(store_.later(7, wait));
  EXPECT_TRUE(store_.later(8, [&over] { over.set_value(); }));
  begin.set_value();
  over.get_future().wait();
  EXPECT_TRUE(store_.later(7, wait));
}

TEST_F(StoreTest, RefusesPackedSpansThatAreNone) {
  record(0, 9);
  const std::string good = store_.packed({}, mib(1));
  EXPECT_TRUE(spans::unpack(good).ok());
  std::string long_name = good;
  long_name.insert(long_name.find("\"names\":[") + 9, "\"" + std::string(4096, 'n') + "\",");
  for (const std::string& bad :
       {long_name, std::string(), std::string("x"), std::string("{}"), good + "1 2 3\n", good + "x\n",
        good + "99 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", good + "2 1 0 0 0 0 9 9 9 0 0 0 0 0 0 0\n"})
    EXPECT_EQ(spans::unpack(bad).status().code(), Code::kCorrupt) << bad;
}

// Who asks from another host is told of jobs in which that host takes part; the daemon's user is somebody there.
TEST_F(StoreTest, OtherHostsAreToldOfTheirJobsOnly) {
  const auto asked_by = [this](std::uint32_t uid, const std::string& host) {
    std::promise<Result<std::string>> said;
    span_answerer(store_)({uid, host, host == "h0", {}, R"({"count": true})"},
                          [&said](Result<std::string> answer) { said.set_value(std::move(answer)); });
    const Result<std::string> answer = said.get_future().get();
    return answer.ok() ? nlohmann::json::parse(*answer).value("spans", -1) : -1;
  };
  record(0, 9);
  record(1, 10);
  EXPECT_EQ(asked_by(0, "h0"), 2);
  EXPECT_EQ(asked_by(0, "h1"), 2);
  EXPECT_EQ(asked_by(0, "h2"), 0);
  EXPECT_EQ(asked_by(1000, "h1"), 1);
  EXPECT_EQ(asked_by(1000, "h2"), 0);
  // As the service runs, which is not root.
  const uid_t own = geteuid();
  if (own == 0) {
    ASSERT_EQ(seteuid(4321), 0);
  }
  EXPECT_EQ(asked_by(geteuid(), "h0"), 2);
  EXPECT_LT(asked_by(geteuid(), "h1"), 2);
  ASSERT_EQ(seteuid(own), 0);
}

class FilesTest : public StoreTest {
 protected:
  FilesTest() { std::filesystem::remove_all(folder_); }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }
  std::vector<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.insert(entry.path().filename());
    return {names.begin(), names.end()};
  }
  std::string folder_ = std::filesystem::temp_directory_path() / ("tl-span-files-" + std::to_string(getpid()));
};

TEST_F(FilesTest, AJobThatFailsLeavesItsSpans) {
  record(0, 9);
  record(1, 10);
  SpanFiles files(store_, folder_);
  files.failed(JobId(9), Epoch(2), "another epoch");
  files.failed(JobId(9), Epoch(1), "mi/ne");
  files.stop();
  ASSERT_EQ(files.saved().size(), 1u);
  const SpanFiles::Saved saved = files.saved().front();
  EXPECT_THAT(saved.path, HasSubstr(folder_ + "/spans-1000-mi_ne-"));
  struct stat info {};
  ASSERT_EQ(stat(saved.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, mode_t{0600});
  std::ifstream in(saved.path);
  std::vector<std::string> jobs;
  for (const auto& event : nlohmann::json::parse(in)) {
    if (event.value("ph", "") == "X") jobs.push_back(event["args"]["job"]);
  }
  EXPECT_THAT(jobs, ElementsAre("mine"));
}

TEST_F(FilesTest, KeepsOnlySoManyAndTouchesNothingElse) {
  std::filesystem::create_directory(folder_);
  std::ofstream(folder_ + "/notes.json") << "mine";
  for (int i = 0; i < 9; ++i) std::ofstream(fmt::format("{}/spans-7-old-{}.json", folder_, i)) << "[";
  std::ofstream(folder_ + "/spans-1000-older-100.json") << "[";
  SpanFiles files(store_, folder_, Duration());
  for (int i = 0; i < 5; ++i) {
    files.failed(JobId(9), Epoch(1), fmt::format("job{}", i));
    for (int wait = 0; wait < 300 && files.saved().size() < std::size_t(std::min(i + 1, 3)); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  files.stop();
  const std::vector<std::string> left = this->files();
  EXPECT_EQ(left.size(), 1 + SpanFiles::kMostFiles) << ::testing::PrintToString(left);
  EXPECT_EQ(std::ranges::count_if(left, [](const auto& n) { return n.starts_with("spans-1000-"); }), 3);
  EXPECT_EQ(files.saved().size(), 3u);
  EXPECT_THAT(left, ::testing::Not(::testing::Contains("spans-1000-older-100.json")));
}

TEST_F(FilesTest, AUserWhoseJobsFailAllTheTimeFillsNoDisk) {
  SpanFiles files(store_, folder_, seconds(60));
  for (int i = 0; i < 5; ++i) files.failed(JobId(9), Epoch(1), "mine");
  files.failed(JobId(10), Epoch(1), "another user's");
  files.stop();
  EXPECT_EQ(this->files().size(), 2u);
}

}  // namespace
}  // namespace tensorlane::telemetry
