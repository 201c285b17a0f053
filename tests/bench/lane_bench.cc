// What a slice costs from the client's submission to its completion: two hosts in this process, each with a lane, its
// engine, a transport and the reducer, sum a tensor again and again. Every sum is checked before anything is printed.
//
//   lane_bench [--transport tcp|rdma --address A] [--slice-bytes N] [--slices N] [--rounds N] [--warm-up N] [--spin US]
//
// Prints one line of JSON: "slices" (data operations that both lanes sent in the measured rounds), "frames" (those and
// control frames), "allocations" (calls of operator new on the lanes' threads meanwhile), "seconds", "sleeps",
// "microseconds_per_slice" (median and p99 of the rounds). Two things look at the measured rounds from outside, see
// tests/bench/README.md: strace, for which access("/lane_bench/begin") and ("/lane_bench/end") mark them, and
// callgrind, which is run with two numbers of rounds.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_transport.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/memory/scratch.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/reduce/workers.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane {
namespace {

constexpr JobId kJob{1};
constexpr std::uint16_t kHosts = 2;
constexpr float kFirst = 3, kSecond = 4;  // what the hosts contribute

struct Options {
  bench::TransportOptions transport;
  std::uint64_t slice_bytes = kib(64).value;
  std::uint32_t slices = 64, rounds = 20, warm_up = 3;
  std::int64_t spin_us = 0;
  std::size_t workers = 0;
};

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "tensorlane: error: {}: lane_bench: see the text, or run the lane's tests\n", what);
  std::exit(1);
}

struct Listener final : ports::LaneListener {
  void on_job_connected(JobId) override {
    connected.store(true);
    connected.notify_one();
  }
  void on_job_failed(JobId, const Status& cause) override { fail(cause.to_string()); }
  void on_job_closed(JobId) override {}
  std::atomic<bool> connected{false};
};

// A client with one tensor that submits one operation at a time. Allocates nothing and locks nothing on the lane's
// thread; wakes it as a session does.
class Client final : public ports::ClientSession {
 public:
  explicit Client(std::size_t bytes) : memory_(bytes), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Client() override { ::close(wake_); }
  std::size_t take(std::span<protocol::SubmissionEntry> out) override {
    const std::uint64_t submitted = submitted_.load(std::memory_order_acquire);
    if (taken_ == submitted) return 0;
    out[0] = {0, 0, ++taken_};
    return 1;
  }
  void complete(const protocol::CompletionEntry& entry) override {
    if (entry.status != Code::kOk) tensorlane::fail("an operation failed");
    completed_.store(entry.sequence, std::memory_order_release);
    completed_.notify_one();
  }
  void fail(const Status& cause) override { tensorlane::fail(cause.to_string()); }
  bool arm_wake() override {
    sleeping_.store(true);
    return taken_ == submitted_.load();
  }
  void disarm_wake() override { sleeping_.store(false, std::memory_order_relaxed); }
  void observe_waits(bool) override {}
  int wake_fd() const override { return wake_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    return std::span(memory_).subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return memory_; }
  bool dead() const override { return false; }

  // ---- the client's thread ----
  void submit() {
    submitted_.fetch_add(1);
    const std::uint64_t one = 1;
    if (sleeping_.load() && ::write(wake_, &one, sizeof one) != sizeof one) tensorlane::fail("cannot wake the lane");
  }
  void wait(std::uint64_t sequence) {
    for (std::uint64_t seen = completed_.load(); seen < sequence; seen = completed_.load()) completed_.wait(seen);
  }
  std::span<float> elements() { return {reinterpret_cast<float*>(memory_.data()), memory_.size() / sizeof(float)}; }

 private:
  std::vector<std::byte> memory_;
  const int wake_;
  std::uint64_t taken_ = 0;
  std::atomic<std::uint64_t> submitted_{0}, completed_{0};
  std::atomic<bool> sleeping_{false};
};

struct Host {
  Host(const Options& options, std::uint16_t index, std::size_t bytes)
      : regions(64), reducer(reduce::make_cpu_reducer()), client(std::make_shared<Client>(bytes)) {
    lane::LaneConfig config;
    config.classes = 1;
    config.rails = {{{mib(1)}, {}}};
    config.spin = microseconds(options.spin_us);
    config.spin_budget = options.spin_us > 0 ? 1e9 : 0;  // --spin is meant
    const auto make_transport = [&](RailIndex, ports::FrameSink& sink) {
      return bench::make_transport(options.transport, index, config.rails[0].windows[0], sink);
    };
    auto workers = reduce::make_executor(*reducer, options.workers, config.spin);
    if (!workers.ok()) fail(workers.status().to_string());
    executor = std::move(*workers);
    auto made =
        lane::Lane::create(config, {&regions, executor.get(), &metrics, &timeline, make_transport, {}, &scratch});
    if (!made.ok()) fail(made.status().to_string());
    lane = std::move(*made);
    lane->start(listener);
  }
  std::uint64_t operations(ClassId cls) const {
    return metrics.classes[ports::metrics_slot(cls)].operations_sent.value();
  }

  memory::RegionTable regions;
  memory::ScratchPool scratch{std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{})};
  std::unique_ptr<ports::Reducer> reducer;
  std::unique_ptr<ports::Executor> executor;
  ports::LaneMetrics metrics;
  ports::NoTimeline timeline;
  Listener listener;
  std::shared_ptr<Client> client;
  std::unique_ptr<lane::Lane> lane;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    const std::uint64_t bytes = options.slice_bytes * options.slices;
    for (std::uint16_t h = 0; h < kHosts; ++h) hosts_.push_back(std::make_unique<Host>(options, h, bytes));
    ports::JobSpec spec;
    spec.name = "bench";
    spec.world_size = kHosts;
    spec.detection = seconds(10);
    protocol::Plan plan;
    plan.version = 1;
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      spec.hosts.push_back({fmt::format("h{}", h),
                            {bench::address_of(options.transport, h)},
                            bench::port_of(options.transport, h),
                            {Rank(h)}});
      plan.rank_hosts.emplace_back(h);
    }
    protocol::PlanTensor& tensor = plan.tensors.emplace_back();
    tensor.name = "t";
    tensor.elements = bytes / sizeof(float);
    tensor.slice_elements = static_cast<std::uint32_t>(options.slice_bytes / sizeof(float));
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      spec.credentials = {kJob, Epoch(1), HostIndex(h), ports::PairKeys(kHosts)};
      must(hosts_[h]->lane->start_job(spec));
      must(hosts_[h]->lane->attach(kJob, Rank(h), hosts_[h]->client));
    }
    for (auto& host : hosts_) host->listener.connected.wait(false);
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      const auto done = std::make_shared<std::promise<void>>();
      must(hosts_[h]->lane->apply_plan(kJob, plan, [done] { done->set_value(); }));
      done->get_future().wait();  // no tensor is bound before
      must(hosts_[h]->lane->bind(kJob, Rank(h), TensorId(0), {0, 0, bytes}));
      const auto bound = std::make_shared<std::promise<void>>();
      must(hosts_[h]->lane->apply_plan(kJob, plan.since(1), [bound] { bound->set_value(); }));
      bound->get_future().wait();
    }
  }

  nlohmann::json run() {
    for (std::uint32_t i = 0; i < options_.warm_up; ++i) round();
    std::vector<double> times(options_.rounds);
    const std::uint64_t data = count({ClassId(0)}), all = count({ClassId(0), kControlClass});
    const std::uint64_t slept = sleeps();
    [[maybe_unused]] int marked = ::access("/lane_bench/begin", F_OK);
    counting::count_allocations(counting::CountedThreads::kLanes);
    for (double& seconds : times) seconds = round();
    counting::count_allocations(counting::CountedThreads::kNone);
    marked = ::access("/lane_bench/end", F_OK);
    const std::uint64_t slices = count({ClassId(0)}) - data;
    double total = 0;
    for (double& seconds : times) {
      total += seconds;
      seconds = seconds * 1e6 * options_.rounds / static_cast<double>(slices);
    }
    std::sort(times.begin(), times.end());
    const auto at = [&](double q) {
      return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))];
    };
    return {{"transport", options_.transport.name},
            {"slice_bytes", options_.slice_bytes},
            {"slices", slices},
            {"frames", count({ClassId(0), kControlClass}) - all},
            {"allocations", counting::allocations()},
            {"sleeps", sleeps() - slept},
            {"seconds", total},
            {"microseconds_per_slice", {{"median", at(0.5)}, {"p99", at(0.99)}}}};
  }

 private:
  static void must(const Status& status) {
    if (!status.ok()) fail(status.to_string());
  }
  std::uint64_t count(std::initializer_list<ClassId> classes) const {
    std::uint64_t sum = 0;
    for (const auto& host : hosts_) {
      for (const ClassId cls : classes) sum += host->operations(cls);
    }
    return sum;
  }
  std::uint64_t sleeps() const { return hosts_[0]->metrics.sleeps.value() + hosts_[1]->metrics.sleeps.value(); }

  // One sum. Returns its seconds, from the first submission to the last completion.
  double round() {
    ++sequence_;
    for (std::uint16_t h = 0; h < kHosts; ++h)
      std::ranges::fill(hosts_[h]->client->elements(), h == 0 ? kFirst : kSecond);
    const auto begin = std::chrono::steady_clock::now();
    for (auto& host : hosts_) host->client->submit();
    for (auto& host : hosts_) host->client->wait(sequence_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (auto& host : hosts_) {
      for (const float value : host->client->elements()) {
        if (value != kFirst + kSecond) fail(fmt::format("a sum is {}", value));
      }
    }
    return seconds;
  }

  const Options& options_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::uint64_t sequence_ = 0;
};

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  using namespace tensorlane;
  Options options;
  CLI::App app("What a slice costs in lane, engine and transport");
  app.add_option("--transport", options.transport.name)->check(CLI::IsMember(bench::transports()));
  app.add_option("--address", options.transport.address, "of an RDMA device, for --transport rdma");
  app.add_option("--slice-bytes", options.slice_bytes)->check(CLI::Range(64, 4 << 20));
  app.add_option("--slices", options.slices, "of the tensor")->check(CLI::Range(2, 100'000));
  app.add_option("--rounds", options.rounds, "measured")->check(CLI::Range(1, 1'000'000));
  app.add_option("--warm-up", options.warm_up, "rounds before that");
  app.add_option("--spin", options.spin_us, "microseconds that an idle lane polls before it blocks");
  app.add_option("--workers", options.workers, "threads of each host that sum and copy")->check(CLI::Range(0, 64));
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("lane_bench"));  // standard output is the result's
  fmt::print("{}\n", Bench(options).run().dump());
}
