// Lanes with real engines, real TCP over loopback and the real reducer; only clients and control are played by the
// test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/transport/tcp/tcp_transport.h"

namespace tensorlane::lane {
namespace {

using namespace std::chrono_literals;

// By the system's clock: the thread sanitizer of Clang 14 does not know how libstdc++ waits by the steady one.
std::chrono::system_clock::time_point patience() {
  return std::chrono::system_clock::now() + 10s;
}

constexpr JobId kJob{77};

// Keeps the spans; to be read once the lane has stopped.
struct FakeTimeline final : ports::Timeline {
  bool enabled() const override { return true; }
  void record(const ports::TraceSpan& span) override { spans.push_back(span); }
  void name(JobId, TensorId, const char*) override {}
  std::vector<ports::TraceSpan> spans;
};

// A client with its memory, in this process.
class FakeClient final : public ports::ClientSession {
 public:
  FakeClient() : memory_(16 << 20), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeClient() override { close(wake_); }

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
    completed_[{entry.tensor, entry.sequence}] = entry.status;
    changed_.notify_all();
  }
  void fail(const Status& cause) override {
    std::lock_guard lock(mutex_);
    failure_ = cause;
    changed_.notify_all();
  }
  bool arm_wake() override {
    std::lock_guard lock(mutex_);
    return submitted_.empty();
  }
  void disarm_wake() override {}
  int wake_fd() const override { return wake_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    if (place.offset + place.bytes > memory_.size()) return {};
    return std::span(memory_).subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return memory_; }
  bool dead() const override { return false; }

  void submit(std::uint32_t tensor, std::uint64_t sequence) {
    {
      std::lock_guard lock(mutex_);
      submitted_.push_back({tensor, 0, sequence});
    }
    const std::uint64_t one = 1;
    ASSERT_EQ(write(wake_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  // The status of the operation, kTimedOut after ten seconds.
  Code wait(std::uint32_t tensor, std::uint64_t sequence) {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_until(lock, patience(), [&] { return completed_.contains({tensor, sequence}); });
    return done ? completed_[{tensor, sequence}] : Code::kTimedOut;
  }
  bool pending(std::uint32_t tensor, std::uint64_t sequence) {
    std::lock_guard lock(mutex_);
    return !completed_.contains({tensor, sequence});
  }
  Status wait_failure() {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, patience(), [&] { return !failure_.ok(); });
    return failure_;
  }
  template <typename T>
  T* data(std::uint64_t offset) {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

 private:
  std::vector<std::byte> memory_;
  int wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<protocol::SubmissionEntry> submitted_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Code> completed_;
  Status failure_;
};

// Control, as far as a lane sees it.
class FakeListener final : public ports::LaneListener {
 public:
  void on_job_connected(JobId) override {
    set([this] { connected_ = true; });
  }
  void on_job_failed(JobId, const Status& cause) override {
    set([&] { cause_ = cause; });
  }
  void on_late(JobId, Rank rank, TensorId tensor, Duration) override {
    set([&] { late_.emplace_back(rank, tensor); });
  }
  void on_job_closed(JobId) override {
    set([this] { closed_ = true; });
  }

  bool wait_connected() {
    return wait([this] { return connected_; });
  }
  bool wait_closed() {
    return wait([this] { return closed_; });
  }
  Status wait_failed() {
    wait([this] { return !cause_.ok(); });
    return cause_;
  }
  std::pair<Rank, TensorId> wait_late() {
    EXPECT_TRUE(wait([this] { return !late_.empty(); }));
    return late_.empty() ? std::pair(Rank(99), TensorId(99)) : late_.front();
  }

 private:
  template <typename F>
  void set(F change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename F>
  bool wait(F condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, patience(), condition);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false, closed_ = false;
  Status cause_;
  std::vector<std::pair<Rank, TensorId>> late_;
};

// A transport whose flows take one operation between two polls.
class OneAtATime final : public ports::Transport {
 public:
  explicit OneAtATime(std::unique_ptr<ports::Transport> real) : real_(std::move(real)) {}
  void add_job(const ports::JobCredentials& credentials) override { real_->add_job(credentials); }
  void remove_job(JobId job) override { real_->remove_job(job); }
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t port, Time deadline) override {
    return real_->connect(flow, address, port, deadline);
  }
  void close(const ports::FlowKey& flow) override { real_->close(flow); }
  bool writable(const ports::FlowKey& flow) const override { return !taken_.contains(flow) && real_->writable(flow); }
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override {
    EXPECT_TRUE(writable(flow)) << "class " << static_cast<int>(flow.cls.value);
    taken_.insert(flow);
    real_->send(flow, operation);
  }
  Bytes in_flight(ClassId cls) override { return real_->in_flight(cls); }
  std::size_t poll(Time now) override {
    taken_.clear();
    return real_->poll(now);
  }
  int wake_fd() const override { return real_->wake_fd(); }
  ports::FlowStats stats(const ports::FlowKey& flow) const override { return real_->stats(flow); }

 private:
  std::unique_ptr<ports::Transport> real_;
  std::set<ports::FlowKey> taken_;
};

// One host: a lane on a loopback address of its own, and the clients of its ranks.
struct TestHost {
  TestHost(std::uint16_t index, const LaneConfig& config, std::size_t ranks, bool one_at_a_time)
      : regions(1024), reducer(reduce::make_cpu_reducer()), address("127.0.3." + std::to_string(index + 1)) {
    for (std::size_t r = 0; r < ranks; ++r) clients.push_back(std::make_shared<FakeClient>());
    const auto make_transport = [&](ports::FrameSink& sink) -> Result<std::unique_ptr<ports::Transport>> {
      tcp::TcpConfig tcp;
      tcp.listen_address = address;
      tcp.data_port = port();
      tcp.classes.push_back({{kControlClass, 51, 6}, mib(1)});
      for (std::uint8_t c = 0; c < config.classes; ++c)
        tcp.classes.push_back({{ClassId(c), static_cast<std::uint8_t>(43 - c), 5}, config.windows[c]});
      TL_ASSIGN_OR_RETURN(std::unique_ptr<ports::Transport> real, tcp::make_tcp_transport(tcp, sink));
      if (one_at_a_time) real = std::make_unique<OneAtATime>(std::move(real));
      return real;
    };
    auto made = Lane::create(config, {&regions, reducer.get(), &metrics, &timeline, make_transport});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    lane = std::move(*made);
    lane->start(listener);
  }
  static std::uint16_t port() { return static_cast<std::uint16_t>(10000 + getpid() % 1000 * 16); }

  memory::RegionTable regions;
  std::unique_ptr<ports::Reducer> reducer;
  ports::LaneMetrics metrics;
  FakeTimeline timeline;
  FakeListener listener;
  std::string address;
  std::vector<std::shared_ptr<FakeClient>> clients;
  std::unique_ptr<Lane> lane;
};

class LaneTest : public ::testing::Test {
 protected:
  // `per_host` ranks on each of `hosts` hosts; tensors as given, laid out one after another in every client's memory.
  void start(std::size_t hosts, std::size_t per_host, std::vector<protocol::PlanTensor> tensors,
             Duration late_after = seconds(10)) {
    LaneConfig config;
    config.classes = 2;
    config.windows = {window_, window_};
    config.staging = mib(8);
    config.late_after = late_after;
    for (std::uint16_t h = 0; h < hosts; ++h)
      hosts_.push_back(std::make_unique<TestHost>(h, config, per_host, one_at_a_time_));
    ports::JobSpec spec;
    spec.name = "test";
    spec.world_size = static_cast<std::uint32_t>(hosts * per_host);
    for (std::size_t h = 0; h < hosts; ++h) {
      ports::JobHost& host =
          spec.hosts.emplace_back(ports::JobHost{"h" + std::to_string(h), hosts_[h]->address, TestHost::port(), {}});
      for (std::size_t r = 0; r < per_host; ++r)
        host.ranks.push_back(Rank(static_cast<std::uint32_t>(h * per_host + r)));
    }
    protocol::Plan& plan = plan_;
    plan.version = 1;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].id = TensorId(static_cast<std::uint32_t>(i));
      tensors[i].name = "t" + std::to_string(i);
      tensors[i].slice_elements = 16384;
      tensors[i].wide_contributions = per_host > 1 && dtype_size(tensors[i].dtype) == 2;
      plan.tensors.push_back(tensors[i]);
    }
    for (std::size_t r = 0; r < hosts * per_host; ++r)
      plan.rank_hosts.push_back(HostIndex(static_cast<std::uint16_t>(r / per_host)));
    for (std::size_t h = 0; h < hosts; ++h) {
      TestHost& host = *hosts_[h];
      spec.credentials = {kJob, Epoch(1), HostIndex(static_cast<std::uint16_t>(h)),
                          std::vector<std::byte>(16, std::byte{7})};
      ASSERT_TRUE(host.lane->start_job(spec).ok());
      for (std::size_t r = 0; r < per_host; ++r)
        ASSERT_TRUE(host.lane->attach(kJob, spec.hosts[h].ranks[r], host.clients[r]).ok());
    }
    for (auto& host : hosts_) ASSERT_TRUE(host->listener.wait_connected());
    for (std::size_t h = 0; h < hosts; ++h) {
      ASSERT_TRUE(hosts_[h]->lane->apply_plan(kJob, plan, nullptr).ok());
      std::uint64_t offset = 0;
      for (const protocol::PlanTensor& tensor : plan.tensors) {
        const std::uint64_t bytes = tensor.elements * dtype_size(tensor.dtype);
        for (Rank rank : spec.hosts[h].ranks)
          ASSERT_TRUE(hosts_[h]->lane->bind(kJob, rank, tensor.id, {0, offset, bytes}).ok());
        offset += (bytes + 63) / 64 * 64;
      }
    }
    barrier();
  }
  // Until every lane has carried out what it was told: binds come before the first submission. A plan for a job that is
  // not there changes nothing, but the lane says when it has come to it.
  void barrier() {
    for (auto& host : hosts_) {
      const auto done = std::make_shared<std::promise<void>>();
      ASSERT_TRUE(host->lane->apply_plan(JobId(0), {}, [done] { done->set_value(); }).ok());
      done->get_future().wait();
    }
  }
  template <typename F>
  void each_client(F visit) {
    std::uint32_t rank = 0;
    for (auto& host : hosts_) {
      for (auto& client : host->clients) visit(*client, rank++);
    }
  }

  // Every host gets the same plan with one tensor more.
  void grow_plan() {
    protocol::PlanTensor more = plan_.tensors.front();
    more.id = TensorId(static_cast<std::uint32_t>(plan_.tensors.size()));
    more.name = "a tensor that somebody registered later, " + std::to_string(plan_.tensors.size());
    plan_.tensors.push_back(more);
    ++plan_.version;
    for (auto& host : hosts_) ASSERT_TRUE(host->lane->apply_plan(kJob, plan_, nullptr).ok());
  }

  Bytes window_ = mib(1);
  std::vector<std::unique_ptr<TestHost>> hosts_;
  protocol::Plan plan_;
  bool one_at_a_time_ = false;  // the transport is made so
};

protocol::PlanTensor allreduce(std::uint64_t elements, Dtype dtype = Dtype::kFloat32,
                               protocol::Pattern pattern = protocol::Pattern::kRing) {
  protocol::PlanTensor tensor;
  tensor.elements = elements;
  tensor.dtype = dtype;
  tensor.pattern = pattern;
  return tensor;
}

struct Shape {
  std::size_t hosts, per_host;
  protocol::Pattern pattern;
};
class Shapes : public LaneTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(Shapes, SumsAndAverages) {
  const auto [hosts, per_host, pattern] = GetParam();
  protocol::PlanTensor average = allreduce(33333, Dtype::kFloat32, pattern);
  average.reduce = ReduceOp::kAverage;
  average.cls = ClassId(1);
  start(hosts, per_host, {allreduce(100, Dtype::kFloat32, pattern), average});
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  const float sum = static_cast<float>(world * (world + 1) / 2);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (int i = 0; i < 100; ++i) client.data<float>(0)[i] = static_cast<float>(rank + 1);
      for (int i = 0; i < 33333; ++i)
        client.data<float>(448)[i] = static_cast<float>((rank + 1) * static_cast<unsigned>(i % 5));
      client.submit(1, sequence);
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      for (int i = 0; i < 100; ++i) ASSERT_EQ(client.data<float>(0)[i], sum);
      for (int i = 0; i < 33333; ++i)
        ASSERT_EQ(client.data<float>(448)[i], sum * static_cast<float>(i % 5) / static_cast<float>(world));
    });
  }
}

// 2048 + 1 + 1 + ... : partial sums in 16 bits would lose every 1.
TEST_P(Shapes, SixteenBitSumsAreRoundedOnce) {
  const auto [hosts, per_host, pattern] = GetParam();
  start(hosts, per_host, {allreduce(5000, Dtype::kBfloat16, pattern)});
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  each_client([&](FakeClient& client, std::uint32_t rank) {
    const std::uint16_t value = rank == 0 ? 0x4380 : 0x3f80;  // 256 and 1 in bfloat16: 256 + 1 rounds back to 256
    for (int i = 0; i < 5000; ++i) client.data<std::uint16_t>(0)[i] = value;
    client.submit(0, 1);
  });
  const float exact = 256.0F + static_cast<float>(world - 1);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &exact, sizeof bits);
  const auto expected = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(client.data<std::uint16_t>(0)[i], expected);
  });
}

TEST_P(Shapes, BroadcastFromTheLastRankAndAllgather) {
  const auto [hosts, per_host, pattern] = GetParam();
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  protocol::PlanTensor broadcast = allreduce(20000, Dtype::kFloat32, pattern);
  broadcast.operation = Operation::kBroadcast;
  broadcast.root_rank = Rank(world - 1);
  broadcast.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
  protocol::PlanTensor gather = allreduce(world * 1000, Dtype::kFloat32, pattern);
  gather.operation = Operation::kAllgather;
  start(hosts, per_host, {broadcast, gather});
  each_client([&](FakeClient& client, std::uint32_t rank) {
    for (int i = 0; i < 20000; ++i)
      client.data<float>(0)[i] = static_cast<float>(rank * 100000 + static_cast<unsigned>(i));
    for (unsigned i = 0; i < 1000; ++i) client.data<float>(80000)[rank * 1000 + i] = static_cast<float>(rank * 10 + i);
    client.submit(0, 1);
    client.submit(1, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    ASSERT_EQ(client.wait(1, 1), Code::kOk);
    for (int i = 0; i < 20000; ++i)
      ASSERT_EQ(client.data<float>(0)[i], static_cast<float>((world - 1) * 100000 + static_cast<unsigned>(i)));
    for (unsigned i = 0; i < world * 1000; ++i)
      ASSERT_EQ(client.data<float>(80000)[i], static_cast<float>(i / 1000 * 10 + i % 1000));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, Shapes,
    ::testing::Values(Shape{1, 1, protocol::Pattern::kRing}, Shape{1, 3, protocol::Pattern::kRing},
                      Shape{2, 1, protocol::Pattern::kRing}, Shape{2, 2, protocol::Pattern::kParameterServer},
                      Shape{3, 1, protocol::Pattern::kRing}, Shape{4, 1, protocol::Pattern::kParameterServer},
                      Shape{3, 2, protocol::Pattern::kRing}, Shape{3, 2, protocol::Pattern::kHalvingDoubling},
                      Shape{4, 1, protocol::Pattern::kTree}),
    [](const auto& info) {
      return std::to_string(info.param.hosts) + "x" + std::to_string(info.param.per_host) +
             protocol::pattern_name(info.param.pattern);
    });

TEST_F(LaneTest, AbortFailsWhatIsPendingAndNamesTheCause) {
  start(2, 1, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  ASSERT_TRUE(hosts_[0]->clients[0]->pending(0, 1));
  ASSERT_TRUE(hosts_[0]->lane->abort_job(kJob, {Code::kAborted, "the test has had enough", "here", ""}).ok());
  EXPECT_EQ(hosts_[0]->clients[0]->wait_failure().what(), "the test has had enough");
  EXPECT_EQ(hosts_[0]->clients[0]->wait(0, 1), Code::kAborted);
  EXPECT_TRUE(hosts_[0]->listener.wait_closed());
}

TEST_F(LaneTest, APeerThatGoesWhileOperationsArePendingIsAFailureThatNamesIt) {
  start(2, 1, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  hosts_[1]->lane->stop();
  hosts_[1]->lane.reset();
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(LaneTest, APeerThatHasLeftIsAFailureOnlyForWhatNeedsIt) {
  start(2, 1, {allreduce(100)});
  ASSERT_TRUE(hosts_[1]->lane->detach(kJob, Rank(1)).ok());
  EXPECT_TRUE(hosts_[1]->listener.wait_closed());
  std::this_thread::sleep_for(100ms);
  hosts_[0]->clients[0]->submit(0, 1);
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(LaneTest, ARankThatKeepsOthersWaitingIsReportedByItsOwnHost) {
  start(2, 2, {allreduce(100)}, milliseconds(300));
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[0]->clients[1]->submit(0, 1);
  hosts_[1]->clients[1]->submit(0, 1);
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(2), TensorId(0)));
}

TEST_F(LaneTest, RubbishSubmissionsFailTheJobAndNameTheRank) {
  start(1, 2, {allreduce(100)});
  hosts_[0]->clients[1]->submit(5, 1);
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(), "rank 1 submitted an unknown tensor: tensor 5, sequence 1");
}

TEST_F(LaneTest, AnOperationOutOfSequenceFailsTheJob) {
  start(1, 2, {allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[0]->clients[0]->submit(0, 2);
  EXPECT_EQ(hosts_[0]->listener.wait_failed().what(),
            "rank 0 submitted an operation out of sequence: tensor 0, sequence 2");
}

// Its ranks register one tensor while others are under way: nothing of an operation may refer to the old plan.
TEST_F(LaneTest, ThePlanGrowsUnderOperationsThatRun) {
  constexpr int kElements = 3'000'000;
  for (const std::size_t hosts : {1u, 2u}) {
    hosts_.clear();
    plan_ = {};
    start(hosts, 2, {allreduce(kElements)});
    each_client([](FakeClient& client, std::uint32_t rank) {
      std::fill_n(client.data<float>(0), kElements, static_cast<float>(rank + 1));
      client.submit(0, 1);
    });
    for (int i = 0; i < 40; ++i) grow_plan();
    const auto world = static_cast<std::uint32_t>(hosts * 2);
    const auto sum = static_cast<float>(world * (world + 1) / 2);
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, 1), Code::kOk);
      const float* result = client.data<float>(0);
      ASSERT_TRUE(std::all_of(result, result + kElements, [&](float value) { return value == sum; }));
    });
  }
}

// Each flow takes one operation between two polls, and send() insists on that.
TEST_F(LaneTest, GivesAFlowNoMoreThanItTakes) {
  constexpr int kElements = 500'000;
  one_at_a_time_ = true;
  protocol::PlanTensor tensor = allreduce(kElements, Dtype::kFloat32, protocol::Pattern::kParameterServer);
  start(3, 1, {tensor});
  each_client([&](FakeClient& client, std::uint32_t rank) {
    std::fill_n(client.data<float>(0), kElements, static_cast<float>(rank));
    client.submit(0, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    const float* result = client.data<float>(0);
    ASSERT_TRUE(std::all_of(result, result + kElements, [](float value) { return value == 3; }));
  });
}

// The host that both jobs share has flows of one and none of the other.
TEST_F(LaneTest, AJobOfOneHostRunsBesideOneOfTwo) {
  start(2, 1, {allreduce(100'000)});
  ports::JobSpec alone;
  alone.name = "alone";
  alone.world_size = 2;
  alone.hosts.push_back({"h0", hosts_[0]->address, TestHost::port(), {Rank(0), Rank(1)}});
  alone.credentials = {JobId(78), Epoch(1), HostIndex(0), std::vector<std::byte>(16, std::byte{8})};
  Lane& lane = *hosts_[0]->lane;
  ASSERT_TRUE(lane.start_job(alone).ok());
  std::vector<std::shared_ptr<FakeClient>> ranks{std::make_shared<FakeClient>(), std::make_shared<FakeClient>()};
  protocol::Plan plan = plan_;
  plan.rank_hosts = {HostIndex(0), HostIndex(0)};
  ASSERT_TRUE(lane.attach(alone.credentials.job, Rank(0), ranks[0]).ok());
  ASSERT_TRUE(lane.attach(alone.credentials.job, Rank(1), ranks[1]).ok());
  ASSERT_TRUE(lane.apply_plan(alone.credentials.job, plan, nullptr).ok());
  for (std::uint32_t r = 0; r < 2; ++r)
    ASSERT_TRUE(lane.bind(alone.credentials.job, Rank(r), TensorId(0), {0, 0, 400'000}).ok());
  barrier();
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
    for (auto& rank : ranks) rank->submit(0, sequence);
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
    for (auto& rank : ranks) ASSERT_EQ(rank->wait(0, sequence), Code::kOk);
  }
}

// A window of one operation: of the slices that are granted at once all but the first have to wait.
TEST_F(LaneTest, TellsHowLongSlicesWaitedAndWhatTheyCost) {
  constexpr std::uint64_t kElements = 200'000;
  window_ = kMaxOperation;
  protocol::PlanTensor bulk = allreduce(kElements);
  bulk.cls = ClassId(1);
  start(2, 1, {bulk});
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  for (auto& host : hosts_) {
    ASSERT_TRUE(host->listener.wait_closed());
    host->lane->stop();
    const ports::ClassMetrics& metrics = host->metrics.classes[1];
    std::uint64_t waits = 0;
    for (std::size_t i = 0; i < ports::DurationHistogram::kBuckets; ++i) waits += metrics.queue_wait.bucket(i);
    EXPECT_EQ(waits, metrics.operations_sent.value());
    EXPECT_GT(metrics.queue_wait.sum_ns(), 0u);
    // Contributions to one half of the tensor, results of the other.
    EXPECT_EQ(host->metrics.slices_sent.value(), 2 * ((kElements / 2 + 16383) / 16384));
    std::uint64_t bytes = 0, waited = 0, reduced = 0;
    for (const ports::TraceSpan& span : host->timeline.spans) {
      if (span.phase == ports::TraceSpan::Phase::kReduce) reduced += span.bytes;
      if (span.phase != ports::TraceSpan::Phase::kQueue) continue;
      bytes += span.bytes;
      waited += static_cast<std::uint64_t>(span.length.value);
      EXPECT_EQ(span.cls, ClassId(1));
      EXPECT_NE(span.peer, HostIndex(host == hosts_[0] ? 0 : 1));
    }
    EXPECT_EQ(bytes, metrics.bytes_sent.value());
    EXPECT_EQ(waited, metrics.queue_wait.sum_ns());
    EXPECT_EQ(reduced, host->metrics.bytes_reduced.value());
    EXPECT_GT(reduced, 0u);
  }
}

TEST_F(LaneTest, ShowsTheTagsThatTheSocketsCarry) {
  start(2, 1, {allreduce(100)});
  const std::vector<ports::FlowReport> flows = hosts_[0]->metrics.flows.all();
  ASSERT_EQ(flows.size(), 3u);  // two data classes and control
  const int dscps[] = {43, 42, 51}, pcps[] = {5, 5, 6};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(flows[i].job, "test");
    EXPECT_EQ(flows[i].peer, "h1");
    EXPECT_EQ(flows[i].cls, i == 2 ? kControlClass : ClassId(static_cast<std::uint8_t>(i)));
    EXPECT_EQ(flows[i].dscp, dscps[i]);
    EXPECT_EQ(flows[i].pcp, pcps[i]);
    EXPECT_THAT(flows[i].path, ::testing::HasSubstr(hosts_[1]->address));
  }
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  ASSERT_TRUE(hosts_[0]->listener.wait_closed());
  EXPECT_TRUE(hosts_[0]->metrics.flows.all().empty());
}

TEST_F(LaneTest, LeavesInPeace) {
  start(2, 1, {allreduce(100)});
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  for (std::uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(hosts_[h]->lane->detach(kJob, Rank(h)).ok());
  for (auto& host : hosts_) EXPECT_TRUE(host->listener.wait_closed());
}

}  // namespace
}  // namespace tensorlane::lane
