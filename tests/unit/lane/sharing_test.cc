// How a lane shares what there is between jobs, and what a wait that blocks changes. The network is played by the test:
// its transport takes everything, and acknowledges it in steps.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/memory/scratch.h"
#include "daemon/reduce/cpu_reducer.h"

namespace tensorlane::lane {
namespace {

using namespace std::chrono_literals;
using protocol::FrameType;

constexpr ClassId kUrgent{0}, kBulk{1};
constexpr Epoch kEpoch{1};

// Keeps the spans of sums.
struct SumTimeline final : ports::Timeline {
  bool enabled() const override { return true; }
  void record(const ports::TraceSpan& span) override {
    std::lock_guard lock(mutex);
    if (span.phase == ports::TraceSpan::Phase::kReduce) sums.push_back(span);
  }
  void name(JobId, TensorId, const char*) override {}
  std::mutex mutex;
  std::vector<ports::TraceSpan> sums;
};

struct NoListener final : ports::LaneListener {
  void on_job_connected(JobId) override { ++connected; }
  void on_job_failed(JobId, const Status& cause) override { ADD_FAILURE() << cause.to_string(); }
  void on_late(JobId, Rank, TensorId, Duration) override {}
  void on_iteration(JobId, Duration) override {}
  void on_progress(JobId, const ports::LaneProgress&) override {}
  void on_job_closed(JobId) override {}
  std::atomic<std::size_t> connected{0};
};

class Client final : public ports::ClientSession {
 public:
  explicit Client(std::size_t bytes) : memory_(bytes), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Client() override { close(wake_); }
  std::size_t take(std::span<protocol::SubmissionEntry> out) override {
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (; n < out.size() && !submitted_.empty(); ++n) {
      out[n] = submitted_.front();
      submitted_.pop_front();
    }
    return n;
  }
  void complete(const protocol::CompletionEntry& entry) override {
    std::lock_guard lock(mutex_);
    completed_.push_back(entry.tensor);
  }
  void fail(const Status&) override {}
  bool arm_wake() override {
    std::lock_guard lock(mutex_);
    return submitted_.empty();
  }
  void disarm_wake() override {}
  void observe_waits(bool) override {}
  int wake_fd() const override { return wake_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    return std::span(memory_).subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return memory_; }
  bool dead() const override { return false; }

  // All of them come to the lane at once.
  void submit(const std::vector<protocol::SubmissionEntry>& entries) {
    {
      std::lock_guard lock(mutex_);
      submitted_.insert(submitted_.end(), entries.begin(), entries.end());
    }
    const std::uint64_t one = 1;
    ASSERT_EQ(write(wake_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  std::vector<std::uint32_t> completed() {
    std::lock_guard lock(mutex_);
    return completed_;
  }

 private:
  std::vector<std::byte> memory_;
  int wake_;
  std::mutex mutex_;
  std::deque<protocol::SubmissionEntry> submitted_;
  std::vector<std::uint32_t> completed_;
};

// What left, in order.
struct Left {
  ports::FlowKey flow;
  protocol::FrameHeader header;
};

class FakeTransport final : public ports::Transport {
 public:
  FakeTransport(ports::FrameSink& sink, std::function<std::uint64_t()> step)
      : sink_(sink), step_(std::move(step)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeTransport() override { ::close(wake_); }

  void add_job(const ports::JobCredentials&) override {}
  void remove_job(JobId) override {}
  Status connect(const ports::FlowKey& flow, const std::string&, std::uint16_t, Time) override {
    rising_.push_back(flow);
    return {};
  }
  void close(const ports::FlowKey&) override {}
  bool writable(const ports::FlowKey&) const override { return true; }
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override {
    std::lock_guard lock(mutex_);
    left_.push_back({flow, operation.header});
    unacknowledged_[flow.cls].push_back({flow, operation});
    in_flight_[flow.cls] += operation.payload.size();
  }
  Bytes in_flight(ClassId cls) override { return Bytes(in_flight_[cls]); }
  std::size_t poll(Time) override {
    std::size_t events = rising_.size();
    for (const ports::FlowKey& flow : std::exchange(rising_, {})) sink_.on_flow_up(flow);
    for (const auto& [flow, header] : announced()) {
      if (header.payload_bytes > 0) {
        EXPECT_TRUE(sink_.on_header(flow, header).ok());
      }
      sink_.on_frame(flow, header);
      ++events;
    }
    for (auto& [cls, waiting] : unacknowledged_) {
      for (std::uint64_t step = step_(); step > 0 && !waiting.empty(); waiting.pop_front(), ++events) {
        const auto [flow, operation] = waiting.front();
        step -= std::min<std::uint64_t>(step, std::max<std::size_t>(operation.payload.size(), 1));
        in_flight_[cls] -= operation.payload.size();
        if (operation.token != 0) sink_.on_sent(flow, operation.token);
      }
    }
    return events;
  }
  int wake_fd() const override { return wake_; }
  ports::FlowStats stats(const ports::FlowKey&) const override { return {}; }

  // Peers speak: the test's thread.
  void announce(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
    std::lock_guard lock(mutex_);
    announced_.push_back({flow, header});
  }
  // As announce(), of all that one poll finds; a poll finds one such list.
  void announce_at_once(std::vector<Left> frames) {
    std::lock_guard lock(mutex_);
    lists_.push_back(std::move(frames));
  }
  std::vector<Left> left() {
    std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  std::vector<Left> announced() {
    std::lock_guard lock(mutex_);
    if (lists_.empty()) return std::exchange(announced_, {});
    std::vector<Left> first = std::move(lists_.front());
    lists_.pop_front();
    return first;
  }
  ports::FrameSink& sink_;
  std::function<std::uint64_t()> step_;
  int wake_;
  std::vector<ports::FlowKey> rising_;
  std::map<ClassId, std::deque<std::pair<ports::FlowKey, ports::Outgoing>>> unacknowledged_;
  std::map<ClassId, std::uint64_t> in_flight_;
  std::mutex mutex_;
  std::vector<Left> left_, announced_;
  std::deque<std::vector<Left>> lists_;
};

protocol::PlanTensor tensor(Operation operation, std::uint64_t elements, std::uint32_t slice_elements,
                            ClassId cls = kUrgent) {
  protocol::PlanTensor t;
  t.operation = operation;
  t.pattern = protocol::Pattern::kParameterServer;
  t.elements = elements;
  t.slice_elements = slice_elements;
  t.cls = cls;
  return t;
}

// Host 0 of its jobs; the other hosts are the test's.
class Sharing : public ::testing::Test {
 protected:
  void start(
      LaneConfig config, std::function<std::uint64_t()> step = [] { return mib(1).value; }) {
    config.classes = static_cast<std::uint8_t>(config.rails[0].windows.size());
    auto made =
        Lane::create(config, {&regions_,
                              reducer_.get(),
                              &metrics_,
                              &timeline_,
                              [&](RailIndex, ports::FrameSink& sink) -> Result<std::unique_ptr<ports::Transport>> {
                                auto transport = std::make_unique<FakeTransport>(sink, step);
                                transport_ = transport.get();
                                return std::unique_ptr<ports::Transport>(std::move(transport));
                              },
                              {},
                              &scratch_});
    ASSERT_TRUE(made.ok());
    lane_ = std::move(*made);
    lane_->start(listener_);
  }
  // A job with `local` ranks here and one on each of `hosts` - 1 others. All tensors lie over each other.
  std::vector<std::shared_ptr<Client>> add_job(JobId id, std::uint16_t hosts, std::size_t local,
                                               std::vector<protocol::PlanTensor> tensors, std::uint32_t user = 0) {
    ports::JobSpec spec;
    spec.name = fmt::format("job{}", id.value);
    spec.owner = {user, spec.name};
    spec.credentials = {id, kEpoch, HostIndex(0), {}};
    spec.world_size = static_cast<std::uint32_t>(local + hosts - 1u);
    protocol::Plan plan;
    plan.version = 1;
    for (std::uint32_t rank = 0; rank < spec.world_size; ++rank) {
      const auto host = static_cast<std::uint16_t>(rank < local ? 0 : rank - local + 1);
      if (host == spec.hosts.size()) spec.hosts.push_back({fmt::format("h{}", host), {"127.0.0.1"}, 1, {}});
      spec.hosts[host].ranks.push_back(Rank(rank));
      plan.rank_hosts.push_back(HostIndex(host));
    }
    std::uint64_t most = 0;
    for (protocol::PlanTensor& t : tensors) {
      t.id = TensorId(static_cast<std::uint32_t>(plan.tensors.size()));
      t.name = fmt::format("t{}", t.id.value);
      most = std::max(most, t.elements * sizeof(float));
      plan.tensors.push_back(t);
    }
    EXPECT_TRUE(lane_->start_job(spec).ok());
    std::vector<std::shared_ptr<Client>> clients;
    for (std::size_t r = 0; r < local; ++r) {
      clients.push_back(std::make_shared<Client>(most));
      EXPECT_TRUE(lane_->attach(id, Rank(static_cast<std::uint32_t>(r)), clients.back()).ok());
    }
    plans_[id] = plan.since(plan.tensors.size());
    put_in_force(id, plan);
    for (const protocol::PlanTensor& t : plan.tensors) {
      for (std::size_t r = 0; r < local; ++r)
        EXPECT_TRUE(
            lane_->bind(id, Rank(static_cast<std::uint32_t>(r)), t.id, {0, 0, t.elements * sizeof(float)}).ok());
    }
    ++jobs_;
    wait([&] { return listener_.connected == jobs_; });
    settle();
    return clients;
  }
  // Every peer of the job is ready for the results of this tensor's first operation.
  void peers_ready(JobId id, std::uint16_t hosts, std::uint32_t tensor) {
    for (std::uint16_t peer = 1; peer < hosts; ++peer) {
      const Left frame = ready(id, HostIndex(peer), tensor);
      transport_->announce(frame.flow, frame.header);
    }
  }
  static Left ready(JobId id, HostIndex peer, std::uint32_t tensor) {
    return {{id, peer, kControlClass},
            {.type = FrameType::kReady,
             .cls = kControlClass,
             .job = id,
             .epoch = kEpoch,
             .grant = 1,
             .tensor = TensorId(tensor),
             .sequence = Sequence(1)}};
  }
  // Until the lane has carried out what it was told of every job.
  void settle() {
    for (const auto& [id, plan] : plans_) put_in_force(id, plan);
  }
  void put_in_force(JobId id, const protocol::Plan& added) {
    const auto done = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(lane_->apply_plan(id, added, [done] { done->set_value(); }).ok());
    done->get_future().wait();
  }
  template <typename F>
  void wait(F condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(condition());
  }

  memory::RegionTable regions_{4096};
  memory::ScratchPool scratch_{std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{mib(4096), mib(0)})};
  std::map<JobId, protocol::Plan> plans_;  // of each job, without tensors
  std::unique_ptr<ports::Reducer> reducer_ = reduce::make_cpu_reducer();
  ports::LaneMetrics metrics_;
  SumTimeline timeline_;
  NoListener listener_;
  FakeTransport* transport_ = nullptr;
  std::size_t jobs_ = 0;
  std::unique_ptr<Lane> lane_;
};

LaneConfig windows(Bytes each) {
  LaneConfig config;
  config.rails = {{{each, each}, {}}};
  config.staging = mib(8);
  return config;
}

struct Shape {
  std::uint16_t hosts;
  std::uint32_t slice_elements;
};

// Payload of the two jobs in one class, added up while both still have something to send.
struct Split {
  std::uint64_t first = 0, second = 0, apart = 0;
};
Split split(const std::vector<Left>& left, ClassId cls, std::uint64_t until) {
  Split s;
  for (const Left& l : left) {
    if (l.flow.cls != cls) continue;
    (l.flow.job == JobId(1) ? s.first : s.second) += l.header.payload_bytes;
    if (s.first >= until || s.second >= until) break;
    s.apart = std::max(s.apart, s.first > s.second ? s.first - s.second : s.second - s.first);
  }
  return s;
}

// Two jobs that call everything urgent (and have as much bulk): one with many peers and long operations, one with one
// peer and short ones. The network takes an irregular number of bytes at a time.
TEST_F(Sharing, JobsGetTheSameNumberOfBytesWhateverTheirPeersAndOperations) {
  std::mt19937 random(5);
  std::atomic<bool> open{false};
  start(windows(kib(700)), [&] { return open ? random() % (400 << 10) : 0; });
  const Shape shapes[] = {{6, 65536}, {2, 5000}};
  constexpr std::uint64_t kEach = 24 << 20;  // bytes to be sent per class
  std::vector<std::shared_ptr<Client>> clients;
  for (std::uint64_t j = 0; j < 2; ++j) {
    const std::uint64_t elements = kEach / sizeof(float) / (shapes[j].hosts - 1u);
    clients.push_back(add_job(JobId(j + 1), shapes[j].hosts, 1,
                              {tensor(Operation::kBroadcast, elements, shapes[j].slice_elements, kUrgent),
                               tensor(Operation::kBroadcast, elements, shapes[j].slice_elements, kBulk)})
                          .front());
    for (std::uint32_t t : {0u, 1u}) peers_ready(JobId(j + 1), shapes[j].hosts, t);
  }
  settle();
  // Both wait before anything is acknowledged; the window that the first one had alone is left out below.
  for (auto& client : clients) {
    client->submit({{0, 0, 1}, {1, 0, 1}});
    wait([&] { return client->arm_wake(); });
    settle();
    settle();
  }
  open = true;
  wait([&] { return clients[0]->completed().size() == 2 && clients[1]->completed().size() == 2; });
  std::vector<Left> left = transport_->left();
  const auto second = std::ranges::find_if(left, [](const Left& l) { return l.flow.job == JobId(2); });
  left.erase(left.begin(), second);
  for (ClassId cls : {kUrgent, kBulk}) {
    const Split s = split(left, cls, kEach / 2);
    EXPECT_GT(std::min(s.first, s.second), kEach / 2 - mib(1).value);
    EXPECT_LE(s.apart, (kMaxOperation * 2).value) << "class " << int{cls.value};
  }
  lane_->stop();  // it asks `open`
}

// What a job's limit keeps back goes in the next class, and nothing waits for it.
TEST_F(Sharing, WhatExceedsAJobsLimitIsDemotedAndCounted) {
  LaneConfig config = windows(mib(1));
  config.job_limits[0] = {BitsPerSecond(1'000'000), mib(2)};
  start(config);
  constexpr std::uint64_t kEach = 8 << 20;
  const auto client = add_job(JobId(1), 2, 1, {tensor(Operation::kBroadcast, kEach / 4, 65536)}).front();
  peers_ready(JobId(1), 2, 0);
  settle();
  client->submit({{0, 0, 1}});
  wait([&] { return client->completed().size() == 1; });
  std::map<ClassId, std::uint64_t> sent;
  for (const Left& l : transport_->left()) sent[l.flow.cls] += l.header.payload_bytes;
  EXPECT_GE(sent[kUrgent], mib(2).value);
  EXPECT_LE(sent[kUrgent], (mib(3)).value);  // 1 MiB takes eight seconds
  EXPECT_EQ(sent[kUrgent] + sent[kBulk], kEach);
  const auto jobs = metrics_.job_list.all();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0]->name, "job1");
  EXPECT_EQ(jobs[0]->classes[0].bytes_sent.value(), sent[kUrgent]);
  EXPECT_EQ(jobs[0]->classes[1].bytes_sent.value(), sent[kBulk]);
  EXPECT_EQ(jobs[0]->classes[0].bytes_demoted.value(), sent[kBulk]);
}

// Nothing but the limit wakes the lane here: announcements go, later, without anything else happening.
TEST_F(Sharing, ControlFramesAreCappedInRateAndAllGo) {
  LaneConfig config = windows(mib(1));
  config.rails[0].control_limit = {BitsPerSecond(1'000'000), kib(4)};
  start(config);
  constexpr std::uint32_t kTensors = 300;  // of 64 bytes each: 19,200 bytes, 121 ms beyond the burst
  std::vector<protocol::PlanTensor> tensors(kTensors, tensor(Operation::kAllreduce, 40'000, 65536));
  const auto client = add_job(JobId(1), 2, 1, tensors).front();
  std::vector<protocol::SubmissionEntry> entries;
  for (std::uint32_t t = 0; t < kTensors; ++t) entries.push_back({t, 0, 1});
  const auto begin = std::chrono::steady_clock::now();
  client->submit(entries);
  wait([&] { return transport_->left().size() == kTensors; });
  const auto passed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(passed, 110ms);
  EXPECT_LE(passed, 2s);
}

// Law 9, before the network: a wait that blocks raises the local work, too, even before the last rank has submitted.
TEST_F(Sharing, AWaitThatBlocksRaisesLocalWork) {
  start(windows(mib(1)));
  const auto clients = add_job(JobId(1), 1, 2, {3, tensor(Operation::kAllreduce, 1 << 20, 65536)});
  clients[0]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}});
  clients[0]->submit({{2, protocol::kFlagRaise, 1}});
  wait([&] { return clients[0]->arm_wake(); });
  settle();
  clients[1]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}});
  wait([&] { return clients[1]->completed().size() == 3; });
  EXPECT_THAT(clients[1]->completed(), ::testing::ElementsAre(2, 0, 1));
  // Once: the next operation is like any other.
  clients[0]->submit({{0, 0, 2}, {1, 0, 2}, {2, 0, 2}});
  wait([&] { return clients[0]->arm_wake(); });
  settle();
  clients[1]->submit({{0, 0, 2}, {1, 0, 2}, {2, 0, 2}});
  wait([&] { return clients[1]->completed().size() == 6; });
  EXPECT_THAT(clients[1]->completed(), ::testing::ElementsAre(2, 0, 1, 0, 1, 2));
}

// ... and what came too early for the engine is raised when the engine has it.
TEST_F(Sharing, AWaitThatBlocksBeforeTheNetworkRaisesOnIt) {
  std::atomic<bool> open{false};
  start(windows(kib(256)), [&open] { return open ? kib(256).value : 0; });
  const auto clients = add_job(JobId(1), 2, 2, {3, tensor(Operation::kBroadcast, 3 << 18, 65536)});
  for (std::uint32_t t : {0u, 1u, 2u}) peers_ready(JobId(1), 2, t);
  clients[0]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {2, protocol::kFlagRaise, 1}});
  clients[1]->submit({{0, 0, 1}, {1, 0, 1}});
  wait([&] { return !transport_->left().empty(); });  // the window is full
  clients[1]->submit({{2, 0, 1}});
  wait([&] { return clients[1]->arm_wake(); });
  settle();
  settle();
  open = true;
  wait([&] { return transport_->left().size() >= 12 * 3; });
  std::vector<std::uint32_t> order;
  for (const Left& l : transport_->left()) {
    if (order.empty() || order.back() != l.header.tensor.value) order.push_back(l.header.tensor.value);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(0, 2, 0, 1));
  lane_->stop();  // it asks `open`
}

// Users share, not jobs: three jobs of one user get together what the one of the other gets.
TEST_F(Sharing, UsersGetTheSameNumberOfBytesHoweverManyJobsTheyHave) {
  std::atomic<bool> open{false};
  start(windows(kib(512)), [&] { return open ? kib(128).value : 0; });
  constexpr std::uint64_t kEach = 8 << 20;
  std::vector<std::shared_ptr<Client>> clients;
  for (std::uint64_t j = 1; j <= 4; ++j) {
    clients.push_back(
        add_job(JobId(j), 2, 1, {tensor(Operation::kBroadcast, kEach / sizeof(float), 65536)}, j == 1 ? 3001 : 3002)
            .front());
    peers_ready(JobId(j), 2, 0);
  }
  settle();
  for (auto& client : clients) {
    client->submit({{0, 0, 1}});
    wait([&] { return client->arm_wake(); });
  }
  settle();
  settle();
  open = true;
  wait([&] { return std::ranges::all_of(clients, [](const auto& c) { return c->completed().size() == 1; }); });
  std::map<JobId, std::uint64_t> sent;
  for (const Left& l : transport_->left()) {
    sent[l.flow.job] += l.header.payload_bytes;
    if (sent[JobId(1)] == kEach) break;
  }
  const std::uint64_t others = sent[JobId(2)] + sent[JobId(3)] + sent[JobId(4)];
  EXPECT_GE(others, kEach - mib(2).value);
  EXPECT_LE(others, kEach + mib(2).value);
  for (std::uint64_t j = 2; j <= 4; ++j) EXPECT_GE(sent[JobId(j)], kEach / 3 - mib(1).value) << "job " << j;
  lane_->stop();
}

// What takes the lane's time counts, not bytes alone: thousands of small operations that become ready at once do not go
// before another user's first one.
TEST_F(Sharing, ThousandsOfSmallOperationsLeaveOthersTheirTurn) {
  start(windows(mib(16)));
  constexpr std::uint32_t kSmall = 2000;
  const auto flood = add_job(JobId(1), 2, 1, {kSmall, tensor(Operation::kBroadcast, 16, 65536)}, 3002).front();
  const auto other = add_job(JobId(2), 2, 1, {tensor(Operation::kBroadcast, 1 << 20, 65536)}, 3001).front();
  std::vector<protocol::SubmissionEntry> entries;
  std::vector<Left> at_once;
  for (std::uint32_t t = 0; t < kSmall; ++t) {
    entries.push_back({t, 0, 1});
    at_once.push_back(ready(JobId(1), HostIndex(1), t));
  }
  at_once.push_back(ready(JobId(2), HostIndex(1), 0));
  flood->submit(entries);
  other->submit({{0, 0, 1}});
  wait([&] { return flood->arm_wake() && other->arm_wake(); });
  settle();
  settle();
  transport_->announce_at_once(std::move(at_once));
  settle();  // wakes it
  wait([&] { return flood->completed().size() == kSmall && other->completed().size() == 1; });
  std::size_t before = 0;  // operations of the flood before the other's next one
  std::size_t most = 0;
  for (const Left& l : transport_->left()) {
    if (l.header.payload_bytes == 0) continue;
    before = l.flow.job == JobId(2) ? 0 : before + 1;
    if (l.flow.job == JobId(2) && l.header.offset + l.header.payload_bytes == mib(4).value) break;
    most = std::max(most, before);
  }
  EXPECT_LE(most, 2 * kMaxOperation.value / 4096);
  EXPECT_GT(most, 0u);
  lane_->stop();
}

protocol::FrameHeader eager(JobId job, std::uint32_t tensor, std::uint32_t slot) {
  return {.type = FrameType::kData,
          .flags = protocol::kFlagEager,
          .cls = kUrgent,
          .job = job,
          .epoch = kEpoch,
          .payload_bytes = 4096,
          .grant = slot + 1,
          .tensor = TensorId(tensor),
          .sequence = Sequence(1),
          .aux = 1};
}

// Law 9: a sum of another job's bulk that could have been next hides nothing more urgent. Both jobs' tensors are those
// of two that host 0 owns.
TEST_F(Sharing, ABulkSumThatIsNextHidesNoUrgentOneOfItsJob) {
  LaneConfig config;
  config.rails = {{{mib(1), mib(1), mib(1)}, {}}};
  config.staging = mib(8);
  start(config);
  const auto sum = [](std::uint8_t cls) { return tensor(Operation::kAllreduce, 1024, 1024, ClassId(cls)); };
  const auto first = add_job(JobId(1), 2, 1, std::vector(30, sum(1))).front();
  const auto second = add_job(JobId(2), 2, 1, {sum(2), sum(2), sum(2), sum(0)}).front();
  std::vector<protocol::SubmissionEntry> entries;
  std::vector<Left> bulk;
  for (std::uint32_t i = 0; i < 30; ++i) {
    if ((i + i / 2) % 2 != 0) continue;  // owned by host 1
    bulk.push_back({{JobId(1), HostIndex(1), kUrgent}, eager(JobId(1), i, static_cast<std::uint32_t>(bulk.size()))});
    entries.push_back({i, 0, 1});
  }
  first->submit(entries);
  second->submit({{0, 0, 1}, {3, 0, 1}});
  wait([&] { return first->arm_wake() && second->arm_wake(); });
  settle();
  settle();
  const std::size_t sums = entries.size() + 2;
  bulk.push_back({{JobId(2), HostIndex(1), kUrgent}, eager(JobId(2), 0, 0)});
  transport_->announce_at_once(std::move(bulk));
  transport_->announce_at_once({{{JobId(2), HostIndex(1), kUrgent}, eager(JobId(2), 3, 1)}});
  settle();
  const auto done = [&] {
    std::lock_guard lock(timeline_.mutex);
    return timeline_.sums.size();
  };
  wait([&] { return done() == sums; });
  lane_->stop();
  const auto urgent = std::ranges::find(timeline_.sums, ClassId(0), &ports::TraceSpan::cls);
  EXPECT_LE(urgent - timeline_.sums.begin(), 4) << "what was done before the urgent sum was there";
  EXPECT_EQ(timeline_.sums.back().cls, ClassId(2));
}

}  // namespace
}  // namespace tensorlane::lane
