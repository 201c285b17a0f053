// A host of a benchmark: lanes with their clients' side played, over real transports.
#pragma once

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench_transport.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/region_table.h"
#include "daemon/memory/scratch.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/reduce/workers.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::bench {

inline constexpr JobId kJob{1};

[[noreturn]] inline void fail(const std::string& what) {
  fmt::print(stderr, "tensorlane: error: {}: the benchmark: see the text, or run the lane's tests\n", what);
  std::exit(1);
}

inline void must(const Status& status) {
  if (!status.ok()) fail(status.to_string());
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
    if (entry.status != Code::kOk) bench::fail("an operation failed");
    completed_.store(entry.sequence, std::memory_order_release);
    completed_.notify_one();
  }
  void fail(const Status& cause) override { bench::fail(cause.to_string()); }
  bool arm_wake() override {
    sleeping_.store(true);
    return taken_ == submitted_.load();
  }
  void disarm_wake() override { sleeping_.store(false, std::memory_order_relaxed); }
  void parts_in_place(const protocol::CompletionEntry&) override {}
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
    if (sleeping_.load() && ::write(wake_, &one, sizeof one) != sizeof one) bench::fail("cannot wake the lane");
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

struct HostOptions {
  TransportOptions transport;
  std::int64_t spin_us = 0;
  std::size_t workers = 0, ranks = 1;  // workers: of all lanes together
  std::size_t rails = 1, lanes = 1;
  Bytes staging = mib(64);  // of each rail
  bool spans = true;        // the last ones are kept, as in the daemon
};

inline telemetry::SpanStoreConfig span_config(const HostOptions& options) {
  telemetry::SpanStoreConfig config;
  config.lanes = options.lanes;
  if (!options.spans) config.memory = Bytes(0);
  return config;
}

// `ranks` clients, each with a tensor of `bytes`.
struct Host {
  Host(const HostOptions& options, std::uint16_t index, std::size_t bytes)
      : reducer(reduce::make_cpu_reducer()), spans(span_config(options)) {
    for (std::size_t r = 0; r < options.ranks; ++r) clients.push_back(std::make_shared<Client>(bytes));
    config.classes = 1;
    config.staging = options.staging;
    for (std::size_t r = 0; r < options.rails; ++r) config.rails.push_back({{mib(1)}, {}, r % options.lanes});
    config.spin = microseconds(options.spin_us);
    config.spin_budget = options.spin_us > 0 ? 1e9 : 0;  // --spin is meant
    const auto make_transport = [&](RailIndex rail, ports::FlowOwner& owner) {
      return bench::make_transport(options.transport, index, rail, config.rails[rail.value].windows[0], owner);
    };
    std::vector<host::HostPorts> ports;
    for (std::size_t l = 0; l < options.lanes; ++l) {
      Part& part = *parts.emplace_back(std::make_unique<Part>());
      const std::size_t workers = options.workers / options.lanes + (l < options.workers % options.lanes ? 1 : 0);
      auto executor = reduce::make_executor(*reducer, workers, config.spin);
      if (!executor.ok()) fail(executor.status().to_string());
      part.executor = std::move(*executor);
      ports.push_back(
          {&part.regions, part.executor.get(), &part.metrics, &spans.lane(l), make_transport, {}, &scratch});
    }
    auto made = lane::Lanes::create(config, ports);
    if (!made.ok()) fail(made.status().to_string());
    lane = std::move(*made);
    lane->start(listener);
  }
  // The plan's tensor is there, and every client's memory of `bytes` is bound to it.
  void begin(const protocol::Plan& plan, std::uint32_t first_rank, std::uint64_t bytes) {
    apply(plan);  // no tensor is bound before
    for (std::uint32_t r = 0; r < clients.size(); ++r)
      must(lane->bind(kJob, Rank(first_rank + r), TensorId(0), {0, 0, bytes}));
    apply(plan.since(1));
  }
  std::uint64_t operations(ClassId cls) const {
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum += part->metrics.classes[ports::metrics_slot(cls)].operations_sent.value();
    return sum;
  }
  std::uint64_t sleeps() const {
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum += part->metrics.sleeps.value();
    return sum;
  }

  // What each lane has for itself.
  struct Part {
    memory::RegionTable regions{64};
    std::unique_ptr<ports::Executor> executor;
    ports::LaneMetrics metrics;
  };

  lane::LaneConfig config;
  memory::ScratchPool scratch{std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{})};
  std::unique_ptr<ports::Reducer> reducer;
  std::vector<std::unique_ptr<Part>> parts;  // by lane
  telemetry::SpanStore spans;
  Listener listener;
  std::vector<std::shared_ptr<Client>> clients;
  std::unique_ptr<lane::Lanes> lane;

 private:
  void apply(protocol::Plan plan) {
    const auto done = std::make_shared<std::promise<void>>();
    must(lane->apply_plan(kJob, std::move(plan), [done] { done->set_value(); }));
    done->get_future().wait();
  }
};

}  // namespace tensorlane::bench
