// A lane whose clients, control and network are played by the test: the transport takes everything, and acknowledges it
// in steps.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/memory/scratch.h"
#include "daemon/ports/inline_executor.h"
#include "daemon/reduce/cpu_reducer.h"

namespace tensorlane::lane {

using namespace std::chrono_literals;
using protocol::FrameType;

inline constexpr ClassId kUrgent{0}, kBulk{1};
inline constexpr JobId kNoJob{999};  // commands for a job that is not there wait for nothing
inline constexpr Epoch kEpoch{1};

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
  void on_job_failed(JobId, const Status& cause) override {
    if (!expected) ADD_FAILURE() << cause.to_string();
    failed.set_value(cause);
  }
  void on_job_closed(JobId) override {}
  std::atomic<std::size_t> connected{0};
  std::atomic<bool> expected{false};  // a failure is
  std::promise<Status> failed;
};

class Client final : public ports::ClientSession {
 public:
  Client(std::size_t bytes, const ports::LaneMetrics& metrics)
      : metrics_(metrics), memory_(bytes), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Client() override { close(wake_); }
  std::size_t take(std::span<protocol::SubmissionEntry> out) override {
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (; n < out.size() && !submitted_.empty(); ++n) {
      out[n] = submitted_.front();
      submitted_.pop_front();
    }
    if (n > 0) taken_[metrics_.loops.value()] += n;
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
  void parts_in_place(const protocol::CompletionEntry&) override {}
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
  // How many submissions the lane has taken, by its turn.
  std::map<std::uint64_t, std::size_t> taken() {
    std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  const ports::LaneMetrics& metrics_;
  std::vector<std::byte> memory_;
  int wake_;
  std::mutex mutex_;
  std::deque<protocol::SubmissionEntry> submitted_;
  std::vector<std::uint32_t> completed_;
  std::map<std::uint64_t, std::size_t> taken_;
};

// What left, in order.
struct Left {
  ports::FlowKey flow;
  protocol::FrameHeader header;
};

class FakeTransport final : public ports::Transport {
 public:
  FakeTransport(ports::FlowOwner& owner, std::function<std::uint64_t()> step)
      : owner_(owner), step_(std::move(step)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeTransport() override { ::close(wake_); }

  void add_job(const ports::JobCredentials&) override {}
  void remove_job(JobId job) override { removed_.insert(job); }
  Status connect(const ports::FlowKey& flow, const std::string&, std::uint16_t, Time) override {
    if (const std::function<void()> then = std::exchange(when_dialed, {})) then();
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(removed_.contains(flow.job)) << "a flow of a job that closes its flows";
    dialed_.push_back(flow);
    if (!held_back_) rising_.push_back(flow);
    return {};
  }
  void close(const ports::FlowKey&) override {}
  Bytes in_flight(ClassId cls) override { return Bytes(in_flight_[cls]); }
  std::size_t poll(Time) override {
    count_turn();
    std::vector<ports::FlowKey> rising;
    std::optional<std::pair<ports::FlowKey, Status>> falling;
    std::map<ports::FlowKey, std::string> resumed;
    {
      std::lock_guard lock(mutex_);
      rising = std::exchange(rising_, {});
      falling = std::exchange(falling_, {});
      resumed = std::exchange(resumed_, {});
    }
    std::size_t events = rising.size();
    for (const ports::FlowKey& key : rising) rise(key);
    for (const auto& [key, ends] : resumed) {
      Line& line = lines_.at(key);
      line.ends = ends;
      owner_.on_flow_resumed(key, line);
    }
    if (falling) {
      owner_.on_flow_down(falling->first, falling->second);
      lines_.erase(falling->first);
    }
    for (const auto& [flow, header] : announced()) {
      if (!lines_.contains(flow)) rise(flow);
      ports::FrameSink& sink = *lines_.at(flow).sink;
      if (header.payload_bytes > 0) {
        EXPECT_TRUE(sink.on_header(header).ok());
      }
      sink.on_frame(header);
      ++events;
    }
    take_back();
    for (auto& [cls, waiting] : unacknowledged_) {
      for (std::uint64_t step = step_(); step > 0 && !waiting.empty(); waiting.pop_front(), ++events) {
        const auto [flow, operation] = waiting.front();
        step -= std::min<std::uint64_t>(step, std::max<std::size_t>(operation.payload.size(), 1));
        in_flight_[cls] -= operation.payload.size();
        progress_[flow].outstanding_bytes -= operation.payload.size();
        if (operation.token != 0 && lines_.contains(flow)) lines_.at(flow).sink->on_sent(operation.token);
      }
    }
    return events;
  }
  int wake_fd() const override { return wake_; }

  // The processor time of the lane's turns from now on: the longest one, and all.
  void watch_turns() { longest_turn_ = turns_ = 0; }
  std::int64_t longest_turn() const { return longest_turn_; }
  std::int64_t turns() const { return turns_; }
  // Of the lane's turn that is now.
  std::uint64_t turn_number() const { return turn_number_; }

  // What the lane has dialed so far, in order.
  // Called once, by the lane, before it dials the first flow. To be set before there is a job.
  std::function<void()> when_dialed;
  std::vector<ports::FlowKey> dialed() {
    std::lock_guard lock(mutex_);
    return dialed_;
  }
  void note_credit() {
    std::lock_guard lock(mutex_);
    notes_credit_ = true;
  }
  // Flows that are dialed from now on do not come up until let_rise() or fall().
  void hold_back() {
    std::lock_guard lock(mutex_);
    held_back_ = true;
  }
  void let_rise(const ports::FlowKey& flow) {
    std::lock_guard lock(mutex_);
    rising_.push_back(flow);
  }
  void fall(const ports::FlowKey& flow, const Status& cause) {
    std::lock_guard lock(mutex_);
    falling_ = {flow, cause};
  }
  // A flow that is up goes on over a connection with these ends.
  void resume(const ports::FlowKey& flow, std::string ends) {
    std::lock_guard lock(mutex_);
    resumed_[flow] = std::move(ends);
  }
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
  // From now on the network takes the data of this job and acknowledges nothing, until it moves.
  void stand(JobId job) {
    std::lock_guard lock(mutex_);
    standing_.insert(job);
  }
  void move(JobId job) {
    std::lock_guard lock(mutex_);
    standing_.erase(job);
  }
  std::vector<Left> left() {
    std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  // A flow that is up.
  struct Line final : ports::Flow {
    Line(FakeTransport& o, const ports::FlowKey& k) : of(o), key(k) {}
    bool writable() const override { return true; }
    void send(const ports::Outgoing& operation) override { of.send(key, operation); }
    ports::FlowStats stats() const override {
      ports::FlowStats stats;
      stats.describe = ends;
      return stats;
    }
    ports::FlowProgress progress() const override {
      const auto found = of.progress_.find(key);
      return found == of.progress_.end() ? ports::FlowProgress() : found->second;
    }
    FakeTransport& of;
    const ports::FlowKey key;
    ports::FrameSink* sink = nullptr;
    std::string ends;
  };
  void rise(const ports::FlowKey& key) {
    Line& line = lines_.try_emplace(key, *this, key).first->second;
    line.sink = &owner_.on_flow_up(key, line);
  }
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) {
    std::lock_guard lock(mutex_);
    // What peers are lent is said to them when their flows are up, which matters to few tests.
    if (notes_credit_ || operation.header.type != FrameType::kCredit) left_.push_back({flow, operation.header});
    auto& waiting = flow.cls != kControlClass && standing_.contains(flow.job) ? kept_ : unacknowledged_;
    waiting[flow.cls].push_back({flow, operation});
    in_flight_[flow.cls] += operation.payload.size();
    ports::FlowProgress& progress = progress_[flow];
    ++progress.given;
    progress.outstanding_bytes += operation.payload.size();
  }

  using Waiting = std::map<ClassId, std::deque<std::pair<ports::FlowKey, ports::Outgoing>>>;

  // Of jobs that move again.
  void take_back() {
    std::lock_guard lock(mutex_);
    for (auto& [cls, waiting] : kept_) {
      for (const auto& kept : waiting) {
        if (!standing_.contains(kept.first.job)) unacknowledged_[cls].push_back(kept);
      }
      std::erase_if(waiting, [&](const auto& kept) { return !standing_.contains(kept.first.job); });
    }
  }
  void count_turn() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    const std::int64_t now = t.tv_sec * 1'000'000'000 + t.tv_nsec, turn = now - last_turn_;
    last_turn_ = now;
    turns_ += turn;
    ++turn_number_;
    longest_turn_ = std::max(longest_turn_.load(), turn);
  }
  std::vector<Left> announced() {
    std::lock_guard lock(mutex_);
    if (lists_.empty()) return std::exchange(announced_, {});
    std::vector<Left> first = std::move(lists_.front());
    lists_.pop_front();
    return first;
  }
  ports::FlowOwner& owner_;
  std::map<ports::FlowKey, Line> lines_;
  std::function<std::uint64_t()> step_;
  int wake_;
  std::int64_t last_turn_ = 0;
  std::atomic<std::int64_t> longest_turn_{0}, turns_{0};
  std::atomic<std::uint64_t> turn_number_{0};
  std::vector<ports::FlowKey> rising_, dialed_;
  std::optional<std::pair<ports::FlowKey, Status>> falling_;
  std::map<ports::FlowKey, std::string> resumed_;
  bool held_back_ = false, notes_credit_ = false;
  std::set<JobId> removed_;
  Waiting unacknowledged_, kept_;
  std::map<ports::FlowKey, ports::FlowProgress> progress_;
  std::map<ClassId, std::uint64_t> in_flight_;
  std::mutex mutex_;
  std::set<JobId> standing_;
  std::vector<Left> left_, announced_;
  std::deque<std::vector<Left>> lists_;
};

inline protocol::PlanTensor tensor(Operation operation, std::uint64_t elements, std::uint32_t slice_elements,
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
class PlayedNetwork : public ::testing::Test {
 protected:
  void start(
      LaneConfig config, std::function<std::uint64_t()> step = [] { return mib(1).value; }) {
    config.classes = static_cast<std::uint8_t>(config.rails[0].windows.size());
    auto made =
        Lanes::create(config, {&regions_,
                               &executor_,
                               &metrics_,
                               &timeline_,
                               [&](RailIndex, ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
                                 auto transport = std::make_unique<FakeTransport>(owner, step);
                                 transport_ = transport.get();
                                 transports_.push_back(transport_);
                                 return std::unique_ptr<ports::Transport>(std::move(transport));
                               },
                               {},
                               &scratch_,
                               nullptr,
                               &descriptors_});
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
    const std::size_t rails = transports_.size();
    protocol::Plan plan;
    plan.version = 1;
    plan.rails = static_cast<std::uint8_t>(rails);
    for (std::uint32_t rank = 0; rank < spec.world_size; ++rank) {
      const auto host = static_cast<std::uint16_t>(rank < local ? 0 : rank - local + 1);
      if (host == spec.hosts.size())
        spec.hosts.push_back({fmt::format("h{}", host), std::vector<std::string>(rails, "127.0.0.1"), 1, {}});
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
      clients.push_back(std::make_shared<Client>(most, metrics_));
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
  // Every peer of the job is ready for the results of this tensor's first operation, on each rail.
  void peers_ready(JobId id, std::uint16_t hosts, std::uint32_t tensor) {
    for (std::uint16_t peer = 1; peer < hosts; ++peer) {
      const Left frame = ready(id, HostIndex(peer), tensor);
      for (FakeTransport* transport : transports_) transport->announce(frame.flow, frame.header);
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
  // What happens meanwhile comes to the lane at once.
  template <typename F>
  void while_it_stands(F happens) {
    std::promise<void> stands, go_on;
    const auto [id, plan] = *plans_.begin();
    ASSERT_TRUE(lane_
                    ->apply_plan(id, plan,
                                 [&] {
                                   stands.set_value();
                                   go_on.get_future().wait();
                                 })
                    .ok());
    stands.get_future().wait();
    happens();
    go_on.set_value();
    settle();
  }
  template <typename F>
  void wait(F condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(condition());
  }

  Ledger descriptors_{{.what = "descriptors", .key = "LimitNOFILE", .total = 10'000}};
  memory::RegionTable regions_{4096};
  memory::ScratchPool scratch_{std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{mib(4096), mib(0)})};
  std::map<JobId, protocol::Plan> plans_;  // of each job, without tensors
  std::unique_ptr<ports::Reducer> reducer_ = reduce::make_cpu_reducer();
  ports::InlineExecutor executor_{*reducer_};
  ports::LaneMetrics metrics_;
  SumTimeline timeline_;
  NoListener listener_;
  std::vector<FakeTransport*> transports_;  // of each rail
  FakeTransport* transport_ = nullptr;      // of the last one
  std::size_t jobs_ = 0;
  std::unique_ptr<Lanes> lane_;
};

inline LaneConfig windows(Bytes each) {
  LaneConfig config;
  config.rails = {{{each, each}, {}}};
  config.staging = mib(8);
  return config;
}

}  // namespace tensorlane::lane
