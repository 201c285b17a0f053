// Lanes with real engines, real TCP over loopback and the real reducer; only clients and control are played by the
// test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <type_traits>

#include "common/protocol/exchange.h"
#include "common/protocol/parts.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/memory/scratch.h"
#include "daemon/ports/all_lanes.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/reduce/workers.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "one_at_a_time.h"

namespace tensorlane::lane {

using namespace std::chrono_literals;

// By the system's clock: the thread sanitizer of Clang 14 does not know how libstdc++ waits by the steady one.
inline std::chrono::system_clock::time_point patience() {
  return std::chrono::system_clock::now() + 10s;
}

inline constexpr JobId kJob{77};

// Keeps the spans; to be read once the lane has stopped.
struct FakeTimeline final : ports::Timeline {
  bool enabled() const override { return true; }
  void record(const ports::TraceSpan& span) override {
    const std::lock_guard lock(mutex);
    spans.push_back(span);
  }
  void name(JobId, TensorId, const char*) override {}
  void begin_job(JobId, Epoch, const std::string&, const std::vector<std::string>&) override {
    if (no_memory) throw std::bad_alloc();
  }
  std::vector<ports::TraceSpan> spans;
  std::atomic<bool> no_memory{false};  // the next jobs find none
  std::mutex mutex;                    // of lanes
};

// Counts what is given back, and by whom.
class WatchedScratch final : public ports::ScratchPool {
 public:
  explicit WatchedScratch(const std::shared_ptr<memory::MemoryBudget>& budget) : pool_(budget) {}
  Result<std::unique_ptr<ports::Scratch>> make(const Owner& owner, std::uint64_t bytes) override {
    TL_ASSIGN_OR_RETURN(std::unique_ptr<ports::Scratch> made, pool_.make(owner, bytes));
    return std::unique_ptr<ports::Scratch>(std::make_unique<Watched>(*this, std::move(made)));
  }
  Result<Ledger::Charge> charge(const Owner& owner, std::uint64_t bytes) override { return pool_.charge(owner, bytes); }
  Status check(const Owner& owner, std::uint64_t bytes) const override { return pool_.check(owner, bytes); }

  std::atomic<std::size_t> given_back{0}, given_back_by_lane{0};

 private:
  class Watched final : public ports::Scratch {
   public:
    Watched(WatchedScratch& pool, std::unique_ptr<ports::Scratch> real) : pool_(pool), real_(std::move(real)) {}
    ~Watched() override {
      real_.reset();
      std::array<char, 16> thread{};
      pthread_getname_np(pthread_self(), thread.data(), thread.size());
      if (std::string_view(thread.data()).starts_with("lane")) ++pool_.given_back_by_lane;
      ++pool_.given_back;
    }
    std::span<std::byte> bytes() const override { return real_->bytes(); }
    Result<bool> populate(std::uint64_t most) override { return real_->populate(most); }

   private:
    WatchedScratch& pool_;
    std::unique_ptr<ports::Scratch> real_;
  };
  memory::ScratchPool pool_;
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
  bool message(std::uint32_t slot, protocol::MessageSlot* out) override {
    std::lock_guard lock(mutex_);
    if (slot >= protocol::kMessageSlots) return false;
    *out = messages_[slot];
    return true;
  }
  void complete_message(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) override {
    std::lock_guard lock(mutex_);
    outcomes_[slot].emplace_back(code, outcome);
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
  void parts_in_place(const protocol::CompletionEntry& entry) override {
    std::lock_guard lock(mutex_);
    in_place_.push_back(entry);
  }
  void observe_waits(bool on) override { observed_ = on; }
  int wake_fd() const override { return wake_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    if (place.offset > memory_.size() || place.bytes > memory_.size() - place.offset) return {};
    return std::span(memory_).subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return memory_; }
  bool dead() const override { return false; }

  void submit(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, 0, sequence}); }
  // These parts of the contribution exist.
  void submit_parts(std::uint32_t tensor, std::uint64_t sequence, const protocol::PartRun& run) {
    put({tensor, protocol::kFlagParts, protocol::with_parts(sequence, run)});
  }
  // What it was told of results in parts.
  std::vector<protocol::CompletionEntry> in_place() {
    std::lock_guard lock(mutex_);
    return in_place_;
  }
  // A send or a receive, in this slot.
  void post(std::uint32_t slot, const protocol::MessageSlot& message, std::uint64_t sequence = 0) {
    {
      std::lock_guard lock(mutex_);
      if (slot < protocol::kMessageSlots) messages_[slot] = message;
    }
    put({slot, protocol::kSubmitMessage, sequence});
  }
  // How it ended; kTimedOut after ten seconds.
  using Outcome = std::pair<Code, protocol::MessageSlot>;
  Outcome wait_message(std::uint32_t slot) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, patience(), [&] { return !outcomes_[slot].empty(); })) return {Code::kTimedOut, {}};
    const Outcome first = outcomes_[slot].front();
    outcomes_[slot].pop_front();
    return first;
  }
  std::size_t messages_over() {
    std::lock_guard lock(mutex_);
    std::size_t all = 0;
    for (const auto& [slot, outcomes] : outcomes_) all += outcomes.size();
    return all;
  }
  // A wait for it blocks.
  void boost(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, protocol::kFlagBoost, sequence}); }
  // It waits, blocked or not.
  void tell_of_wait(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, protocol::kFlagWaited, sequence}); }
  bool observed() const { return observed_; }
  // That nobody has read; it waits for the next one.
  std::uint64_t unread_wake_ups() {
    std::uint64_t count = 0;
    return read(wake_, &count, sizeof count) == sizeof count ? count : 0;
  }
  void put(const protocol::SubmissionEntry& entry) {
    {
      std::lock_guard lock(mutex_);
      submitted_.push_back(entry);
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
  // It is unregistered: another one in its place begins with sequence 1.
  void forget(std::uint32_t tensor) {
    std::lock_guard lock(mutex_);
    std::erase_if(completed_, [&](const auto& operation) { return operation.first.first == tensor; });
  }
  // The lane has what was submitted.
  bool all_taken() {
    std::lock_guard lock(mutex_);
    return submitted_.empty();
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
  std::vector<protocol::CompletionEntry> in_place_;
  std::array<protocol::MessageSlot, protocol::kMessageSlots> messages_;
  std::map<std::uint32_t, std::deque<Outcome>> outcomes_;  // by slot
  Status failure_;
  std::atomic<bool> observed_{false};
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
  void on_late(JobId, Rank rank, TensorId tensor, Duration waited) override {
    set([&] {
      late_.emplace_back(rank, tensor);
      longest_late_ = std::max(longest_late_, waited);
    });
  }
  void on_missing(JobId, HostIndex peer, TensorId tensor, Sequence sequence, Duration waited) override {
    set([&] { missing_.push_back({peer, tensor, sequence, waited}); });
  }
  void on_iteration(JobId, Duration time) override {
    set([&] { iterations_.push_back(time); });
  }
  void on_progress(JobId, const ports::LaneProgress& progress) override {
    set([&] { progress_.push_back(progress); });
  }
  void on_flows_wanted(JobId, HostIndex peer) override {
    if (wants_flows) wants_flows(peer);
  }
  void on_message_waits(JobId, Rank rank, std::optional<Rank> peer, Duration waited) override {
    set([&] { waiting_.push_back({rank, peer, waited}); });
  }
  void on_job_closed(JobId) override {
    set([this] { closed_ = true; });
  }
  // What control does then: it asks the peer.
  std::function<void(HostIndex peer)> wants_flows;
  struct Waiting {
    Rank rank;
    std::optional<Rank> peer;
    Duration waited;
  };
  // Messages that wait, once there are so many reports.
  std::vector<Waiting> wait_waiting(std::size_t most) {
    return wait([&] { return waiting_.size() >= most; }, [this] { return waiting_; });
  }

  // Each waits, and reads under the lane's lock: the lane may go on reporting.
  std::size_t wait_iterations(std::size_t most) {
    return wait([&] { return iterations_.size() >= most; }, [this] { return iterations_.size(); });
  }
  bool wait_connected() { return wait_flag(connected_); }
  // Waits anew for the next job's.
  void forget() {
    set([this] { connected_ = closed_ = false; });
  }
  bool wait_closed() { return wait_flag(closed_); }
  Status wait_failed() {
    return wait([this] { return !cause_.ok(); }, [this] { return cause_; });
  }
  // The last one, once there are so many.
  ports::LaneProgress wait_progress(std::size_t most) {
    return wait([&] { return progress_.size() >= most; },
                [this] { return progress_.empty() ? ports::LaneProgress() : progress_.back(); });
  }
  std::pair<Rank, TensorId> wait_late() {
    return wait([this] { return !late_.empty(); },
                [this] { return late_.empty() ? std::pair(Rank(99), TensorId(99)) : late_.front(); });
  }
  struct Missing {
    HostIndex peer;
    TensorId tensor;
    Sequence sequence;
    Duration waited;
  };
  // The first; none in time.
  std::optional<Missing> wait_missing() {
    return wait([this] { return !missing_.empty(); },
                [this] { return missing_.empty() ? std::nullopt : std::optional(missing_.front()); });
  }
  std::size_t late() {
    std::lock_guard lock(mutex_);
    return late_.size();
  }
  std::vector<Missing> all_missing() {
    std::lock_guard lock(mutex_);
    return missing_;
  }
  Duration longest_late() {
    std::lock_guard lock(mutex_);
    return longest_late_;
  }
  std::size_t missing() {
    std::lock_guard lock(mutex_);
    return missing_.size();
  }

 private:
  template <typename F>
  void set(F change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename Condition, typename Value>
  std::invoke_result_t<Value> wait(Condition condition, Value value) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, patience(), condition);
    return value();
  }
  bool wait_flag(const bool& flag) {
    return wait([&] { return flag; }, [&] { return flag; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false, closed_ = false;
  Status cause_;
  std::vector<std::pair<Rank, TensorId>> late_;
  Duration longest_late_;
  std::vector<Missing> missing_;
  std::vector<Waiting> waiting_;
  std::vector<Duration> iterations_;
  std::vector<ports::LaneProgress> progress_;
};

// One host: a lane with a loopback address of its own for every rail, and the clients of its ranks.
struct TestHost {
  TestHost(std::uint16_t index, const LaneConfig& config, std::size_t ranks, bool one_at_a_time)
      : regions(1024), reducer(reduce::make_cpu_reducer()) {
    for (std::size_t rail = 0; rail < config.rails.size(); ++rail)
      addresses.push_back("127.0." + std::to_string(3 + rail) + "." + std::to_string(index + 1));
    for (std::size_t r = 0; r < ranks; ++r) clients.push_back(std::make_shared<FakeClient>());
    const auto make_transport = [&](RailIndex rail,
                                    ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
      tcp::TcpConfig tcp;
      tcp.listen_address = addresses[rail.value];
      tcp.data_port = port();
      tcp.classes.push_back({{kControlClass, 51, 6}, mib(1)});
      for (std::uint8_t c = 0; c < config.classes; ++c)
        tcp.classes.push_back(
            {{ClassId(c), static_cast<std::uint8_t>(43 - c), 5}, config.rails[rail.value].windows[c]});
      if (!one_at_a_time) return tcp::make_tcp_transport(tcp, owner);
      auto between = std::make_unique<OneAtATime>(owner);
      TL_ASSIGN_OR_RETURN(std::unique_ptr<ports::Transport> real, tcp::make_tcp_transport(tcp, *between));
      return std::unique_ptr<ports::Transport>(
          std::make_unique<OneAtATimeTransport>(std::move(between), std::move(real)));
    };
    std::vector<host::HostPorts> ports;
    for (std::size_t l = 0; l < lanes(); ++l) {
      parts.push_back(std::make_unique<Part>());
      make_executor(*parts.back());
      ports.push_back({l + 1 == lanes() ? &regions : &parts[l]->regions,
                       parts[l]->executor.get(),
                       &parts[l]->metrics,
                       &timeline,
                       make_transport,
                       {},
                       &scratch,
                       &region_ledger,
                       &descriptors});
    }
    executor = parts.back()->executor.get();
    auto made = Lanes::create(config, ports);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    lane = std::move(*made);
    lane->start(listener);
  }
  // Every test runs with both kinds, and with one lane and with two (CMakeLists.txt). With two, rail 0 is on the
  // second lane, and a job lives on the first.
  static std::size_t lanes() {
    const char* lanes = std::getenv("TENSORLANE_TEST_LANES");
    return lanes == nullptr ? 1 : static_cast<std::size_t>(std::atoi(lanes));
  }
  // What each lane has for itself.
  struct Part {
    memory::RegionTable regions{1024};
    ports::LaneMetrics metrics;
    std::unique_ptr<ports::Executor> executor;
  };
  // Of all lanes, as they are now; valid until the next call.
  const ports::LaneMetrics& metrics() {
    std::vector<const ports::LaneMetrics*> all;
    for (const auto& part : parts) all.push_back(&part->metrics);
    sum = ports::AllLanes(all).sum();
    return *sum;
  }
  void make_executor(Part& part) {
    const char* threads = std::getenv("TENSORLANE_TEST_WORKERS");
    auto made = reduce::make_executor(*reducer, threads == nullptr ? 0 : static_cast<std::size_t>(std::atoi(threads)),
                                      microseconds(0));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    part.executor = std::move(*made);
  }
  static std::uint16_t port() { return static_cast<std::uint16_t>(10000 + getpid() % 1000 * 16); }

  memory::RegionTable regions;  // of the lane that has the rails
  Ledger region_ledger{{.what = "tensors",
                        .key = "the table of tensors",
                        .user_key = "the table of tensors for one user",
                        .fix = "register fewer",
                        .total = 1024,
                        .per_user = 512}};
  Ledger descriptors{{.what = "descriptors", .key = "LimitNOFILE", .total = 1000}};
  const std::shared_ptr<memory::MemoryBudget> budget =
      std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{mib(4096), mib(0)});
  WatchedScratch scratch{budget};
  std::unique_ptr<ports::Reducer> reducer;
  std::vector<std::unique_ptr<Part>> parts;  // by lane
  std::unique_ptr<const ports::LaneMetrics> sum;
  ports::Executor* executor = nullptr;  // of the lane that has the rails
  FakeTimeline timeline;
  FakeListener listener;
  std::vector<std::string> addresses;  // by rail
  std::vector<std::shared_ptr<FakeClient>> clients;
  std::unique_ptr<Lanes> lane;
};

class LaneTest : public ::testing::Test {
 protected:
  // The logger is there before lanes are, as in the daemon: the thread sanitizer does not see how the library makes it.
  LaneTest() { spdlog::default_logger(); }
  // `per_host` ranks on each of `hosts` hosts; tensors as given, laid out one after another in every client's memory,
  // or where `offsets` says.
  void start(std::size_t hosts, std::size_t per_host, std::vector<protocol::PlanTensor> tensors,
             Duration late_after = seconds(10), const std::vector<std::uint64_t>& offsets = {}) {
    LaneConfig config;
    config.classes = 2;
    for (std::size_t r = 0; r < rails_; ++r)
      config.rails.push_back({{window_, window_}, {}, (r + TestHost::lanes() - 1) % TestHost::lanes()});
    config.staging = mib(8);
    config.late_after = late_after;
    config.tunes = tunes_;
    config.observes = observes_;
    config.thresholds = {0.75};
    for (std::uint16_t h = 0; h < hosts; ++h)
      hosts_.push_back(std::make_unique<TestHost>(h, config, per_host, one_at_a_time_));
    ports::JobSpec spec;
    spec.name = "test";
    spec.world_size = static_cast<std::uint32_t>(hosts * per_host);
    for (std::size_t h = 0; h < hosts; ++h) {
      ports::JobHost& host =
          spec.hosts.emplace_back(ports::JobHost{"h" + std::to_string(h), hosts_[h]->addresses, TestHost::port(), {}});
      for (std::size_t r = 0; r < per_host; ++r)
        host.ranks.push_back(Rank(static_cast<std::uint32_t>(h * per_host + r)));
    }
    protocol::Plan& plan = plan_;
    plan.version = 1;
    plan.rails = static_cast<std::uint8_t>(rails_);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].id = TensorId(static_cast<std::uint32_t>(i));
      tensors[i].name = "t" + std::to_string(i);
      tensors[i].slice_elements = 16384;
      tensors[i].fp32_contributions |= per_host > 1 && dtype_size(tensors[i].dtype) == 2;
      plan.tensors.push_back(tensors[i]);
    }
    for (std::size_t r = 0; r < hosts * per_host; ++r)
      plan.rank_hosts.push_back(HostIndex(static_cast<std::uint16_t>(r / per_host)));
    for (std::size_t h = 0; h < hosts; ++h) {
      TestHost& host = *hosts_[h];
      spec.credentials = {kJob, Epoch(1), HostIndex(static_cast<std::uint16_t>(h)), ports::PairKeys(hosts)};
      host.listener.wants_flows = [this, self = spec.credentials.self](HostIndex peer) {
        EXPECT_TRUE(hosts_[peer.value]->lane->open_flows(kJob, self).ok());
      };
      if (crossed_ && h == 0) std::ranges::reverse(spec.hosts[1].addresses);
      ASSERT_TRUE(host.lane->start_job(spec).ok());
      for (std::size_t r = 0; r < per_host; ++r)
        ASSERT_TRUE(host.lane->attach(kJob, spec.hosts[h].ranks[r], host.clients[r]).ok());
    }
    for (auto& host : hosts_) ASSERT_TRUE(host->listener.wait_connected());
    if (crossed_) {
      for (auto& host : hosts_) ASSERT_TRUE(host->lane->apply_plan(kJob, plan, nullptr).ok());
      return;
    }
    for (std::size_t h = 0; h < hosts; ++h) {
      put_in_force(*hosts_[h]->lane, kJob, plan);
      std::uint64_t offset = 0;
      for (const protocol::PlanTensor& tensor : plan.tensors) {
        if (tensor.is_batch()) continue;  // nobody registers it
        if (!offsets.empty()) offset = offsets[tensor.id.value];
        for (Rank rank : spec.hosts[h].ranks) {
          const std::uint64_t bytes = buffer_bytes(tensor, rank);
          ASSERT_TRUE(hosts_[h]->lane->bind(kJob, rank, tensor.id, {0, offset, bytes}).ok());
        }
        offset += (tensor.bytes() + 63) / 64 * 64;
      }
    }
    barrier();
  }
  // Of a rank's buffer.
  std::uint64_t buffer_bytes(const protocol::PlanTensor& tensor, Rank rank) const {
    if (!exchanges(tensor.operation)) return tensor.bytes();
    const auto world_size = static_cast<std::uint32_t>(plan_.rank_hosts.size());
    return protocol::exchange_of(tensor, world_size).buffer(rank.value) * dtype_size(tensor.dtype);
  }
  // Until every lane has carried out what it was told: binds come before the first submission.
  void barrier() {
    for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.since(plan_.tensors.size()));
  }
  // As control does, which binds no tensor before its plan is in force.
  static void put_in_force(Lanes& lane, JobId job, const protocol::Plan& added) {
    const auto done = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(lane.apply_plan(job, added, [done] { done->set_value(); }).ok());
    done->get_future().wait();
  }
  template <typename F>
  void each_client(F visit) {
    std::uint32_t rank = 0;
    for (auto& host : hosts_) {
      for (auto& client : host->clients) visit(*client, rank++);
    }
  }

  // What is in the range is unregistered everywhere.
  void vacate(protocol::TensorRange range) {
    plan_.vacate(range);
    ++plan_.version;
    for (auto& host : hosts_) {
      const auto gone = std::make_shared<std::promise<void>>();
      ASSERT_TRUE(host->lane->vacate(kJob, plan_.version, range, [gone] { gone->set_value(); }).ok());
      gone->get_future().wait();
    }
    each_client([range](FakeClient& client, std::uint32_t) {
      for (std::uint32_t tensor = range.first; tensor < range.end(); ++tensor) client.forget(tensor);
    });
  }
  // Others come to be there, registered together.
  void place(std::uint32_t first, std::vector<protocol::PlanTensor> tensors,
             const std::vector<std::uint64_t>& offsets) {
    const protocol::TensorRange range{first, static_cast<std::uint32_t>(tensors.size())};
    ++plan_.version;
    for (std::uint32_t i = 0; i < range.count; ++i) {
      tensors[i].id = TensorId(first + i);
      if (tensors[i].in_batch()) tensors[i].batch += first;
      tensors[i].group = plan_.version;
      tensors[i].name = "another " + std::to_string(first + i);
      tensors[i].slice_elements = 16384;
    }
    plan_.place(range, tensors);
    for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.part(range));
    std::uint32_t rank = 0;
    for (auto& host : hosts_) {
      for (std::size_t r = 0; r < host->clients.size(); ++r, ++rank) {
        for (std::uint32_t i = 0; i < range.count; ++i) {
          if (tensors[i].is_batch()) continue;
          const std::uint64_t bytes = tensors[i].elements * dtype_size(tensors[i].dtype);
          ASSERT_TRUE(host->lane->bind(kJob, Rank(rank), tensors[i].id, {0, offsets[i], bytes}).ok());
        }
      }
    }
    barrier();
  }

  // Every host gets the same plan with one tensor more.
  void grow_plan() {
    protocol::PlanTensor more = plan_.tensors.front();
    more.id = TensorId(static_cast<std::uint32_t>(plan_.tensors.size()));
    more.name = "a tensor that somebody registered later, " + std::to_string(plan_.tensors.size());
    plan_.tensors.push_back(more);
    ++plan_.version;
    for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.since(plan_.tensors.size() - 1));
  }

  Bytes window_ = mib(1);
  std::size_t rails_ = 1;
  bool crossed_ = false;  // host 0 has the addresses of host 1 in the wrong order: no plan comes in force
  std::vector<std::unique_ptr<TestHost>> hosts_;
  protocol::Plan plan_;
  bool tunes_ = false, observes_ = false;
  bool one_at_a_time_ = false;  // the transport is made so
};

inline protocol::PlanTensor allreduce(std::uint64_t elements, Dtype dtype = Dtype::kFloat32,
                                      protocol::Pattern pattern = protocol::Pattern::kRing) {
  protocol::PlanTensor tensor;
  tensor.elements = elements;
  tensor.dtype = dtype;
  tensor.pattern = pattern;
  return tensor;
}

}  // namespace tensorlane::lane
