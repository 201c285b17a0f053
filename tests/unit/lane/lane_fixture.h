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
#include "played_client.h"

namespace tensorlane::lane {

using namespace std::chrono_literals;

inline constexpr JobId kJob{77};

// Keeps the spans; to be read once the lane has stopped.
struct FakeTimeline final : ports::Timeline {
  bool enabled() const override { return true; }
  void record(const ports::TraceSpan& span) override {
    const std::lock_guard lock(mutex);
    spans.push_back(span);
  }
  void name(JobId, TensorId, const char*) override {}
  void begin_job(const ports::TraceJob&) override {
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
  // Of a rank's buffer; the rank is one of the tensor's world.
  std::uint64_t buffer_bytes(const protocol::PlanTensor& tensor, Rank rank) const {
    if (!exchanges(tensor.operation)) return tensor.bytes();
    const bool all = tensor.world == nullptr;
    const auto world_size = all ? static_cast<std::uint32_t>(plan_.rank_hosts.size()) : tensor.world->size();
    const std::uint32_t number = all ? rank.value : *tensor.world->rank_of(rank.value);
    return protocol::exchange_of(tensor, world_size).buffer(number) * dtype_size(tensor.dtype);
  }
  // Until every lane has carried out what it was told: binds come before the first submission.
  void barrier() {
    for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.since(plan_.tensors.size()));
  }
  // As control does, which binds no tensor before its plan is in force.
  static void put_in_force(Lanes& lane, JobId job, const protocol::Plan& added) {
    const auto done = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(lane.apply_plan(job, added, [done] { done->set_value(); }).ok());
    // It is never told where the job fails.
    ASSERT_EQ(done->get_future().wait_until(patience()), std::future_status::ready) << "the plan is not in force";
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
      ASSERT_EQ(gone->get_future().wait_until(patience()), std::future_status::ready) << "they have not gone";
    }
    // As the leader counts them: what comes to be there goes on from all operations of the range.
    std::uint64_t operations = 0;
    each_client([&](FakeClient& client, std::uint32_t) {
      std::uint64_t own = 0;
      for (std::uint32_t tensor = range.first; tensor < range.end(); ++tensor) own += client.forget(tensor);
      operations = std::max(operations, own);
    });
    for (std::uint32_t tensor = range.first; tensor < range.end(); ++tensor) bases_[tensor] += operations;
  }
  // Others come to be there, or behind the last one, registered together, of a process set by its ranks alone.
  void place(std::uint32_t first, std::vector<protocol::PlanTensor> tensors,
             const std::vector<std::uint64_t>& offsets) {
    const protocol::TensorRange range{first, static_cast<std::uint32_t>(tensors.size())};
    ++plan_.version;
    for (std::uint32_t i = 0; i < range.count; ++i) {
      tensors[i].id = TensorId(first + i);
      if (tensors[i].in_batch()) tensors[i].batch += first;
      tensors[i].group = plan_.version;
      tensors[i].base = bases_[first + i];
      tensors[i].name = "another " + std::to_string(first + i);
      tensors[i].slice_elements = 16384;
    }
    plan_.place(range, tensors);
    for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.part(range));
    std::uint32_t rank = 0;
    for (auto& host : hosts_) {
      for (std::size_t r = 0; r < host->clients.size(); ++r, ++rank) {
        for (std::uint32_t i = 0; i < range.count; ++i) {
          if (tensors[i].is_batch() || (tensors[i].world != nullptr && !tensors[i].world->rank_of(rank))) continue;
          const std::uint64_t bytes = buffer_bytes(tensors[i], Rank(rank));
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
  std::map<std::uint32_t, std::uint64_t> bases_;  // by place: operations that there were
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
