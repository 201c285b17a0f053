// What workers gain: the ranks of one host sum a tensor again and again, by a lane with so many workers; beside it, in
// the same program, the same blocks by bare kernels on so many threads, without lane, queue or clients. Every sum is
// checked before anything is printed.
//
//   work_bench [--ranks N] [--workers N] [--mib N] [--rounds N] [--spin US]
//
// Prints one line of JSON: "lane" and "bare", each the median and p99 of a round's seconds. With --workers 0 the lane's
// thread does the work, and one thread is bare.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <barrier>
#include <chrono>
#include <thread>

#include "bench_host.h"
#include "common/json/json.h"

namespace tensorlane {
namespace {

using bench::Host;
using bench::kJob;
using bench::must;

struct Options : bench::HostOptions {
  std::uint64_t mib = 4;
  std::uint32_t rounds = 30;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

nlohmann::json summary(std::vector<double> times) {
  std::ranges::sort(times);
  const auto at = [&](double q) { return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))]; };
  return {{"median", at(0.5)}, {"p99", at(0.99)}};
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), bytes_(mib(options.mib).value), host_(options, 0, bytes_) {
    ports::JobSpec spec;
    spec.name = "bench";
    spec.world_size = static_cast<std::uint32_t>(options.ranks);
    spec.detection = seconds(10);
    spec.credentials = {kJob, Epoch(1), HostIndex(0), ports::PairKeys(1)};
    ports::JobHost& host = spec.hosts.emplace_back();
    host.name = "h0";
    host.addresses = {bench::address_of(options.transport, 0, RailIndex(0))};
    host.data_port = bench::port_of(options.transport, 0);
    protocol::Plan plan;
    plan.version = 1;
    for (std::uint32_t r = 0; r < options.ranks; ++r) {
      host.ranks.emplace_back(r);
      plan.rank_hosts.emplace_back(0);
    }
    protocol::PlanTensor& tensor = plan.tensors.emplace_back();
    tensor.name = "t";
    tensor.elements = bytes_ / sizeof(float);
    must(host_.lane->start_job(spec));
    for (std::uint32_t r = 0; r < options.ranks; ++r) must(host_.lane->attach(kJob, Rank(r), host_.clients[r]));
    host_.listener.connected.wait(false);
    host_.begin(plan, 0, bytes_);
  }

  // The two take turns, so that whatever else the machine does meets both.
  nlohmann::json run() {
    constexpr std::uint32_t kWarmUp = 3;
    std::vector<double> lane, bare;
    for (std::uint32_t i = 0; i < options_.rounds + kWarmUp; ++i) {
      const double by_lane = round([&] { sum_by_lane(); }), by_kernels = round([&] { sum_by_kernels(); });
      if (i < kWarmUp) continue;
      lane.push_back(by_lane);
      bare.push_back(by_kernels);
    }
    return {{"ranks", options_.ranks},
            {"workers", options_.workers},
            {"bytes", bytes_},
            {"lane", summary(lane)},
            {"bare", summary(bare)}};
  }

 private:
  double round(const std::function<void()>& sum) {
    float expected = 0;
    for (std::size_t r = 0; r < options_.ranks; ++r) {
      std::ranges::fill(host_.clients[r]->elements(), static_cast<float>(r + 1));
      expected += static_cast<float>(r + 1);
    }
    const double seconds = seconds_of(sum);
    for (const auto& client : host_.clients) {
      for (const float value : client->elements()) {
        if (value != expected) bench::fail(fmt::format("a sum is {}", value));
      }
    }
    return seconds;
  }

  void sum_by_lane() {
    ++sequence_;
    for (auto& client : host_.clients) client->submit();
    for (auto& client : host_.clients) client->wait(sequence_);
  }

  // As daemon/host/local_work.cc cuts it.
  void sum_by_kernels() {
    const std::size_t threads = std::max<std::size_t>(options_.workers, 1);
    const std::uint64_t block = kMaxOperation.value / options_.ranks / 64 * 64;
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        ports::Block work;
        for (std::uint64_t at = t * block; at < bytes_; at += threads * block) {
          work.clear();
          fill(work, at, std::min(block, bytes_ - at));
          work.run(*host_.reducer);
        }
      });
    }
  }
  void fill(ports::Block& work, std::uint64_t at, std::uint64_t bytes) {
    const auto place = [&](std::size_t r) { return std::as_writable_bytes(host_.clients[r]->elements()).data() + at; };
    const std::span<ports::ReduceSource> sources =
        work.add_sum(place(0), Dtype::kFloat32, options_.ranks, bytes / sizeof(float), ReduceOp::kSum, 1);
    for (std::size_t r = 0; r < options_.ranks; ++r) sources[r] = {place(r), Dtype::kFloat32};
    for (std::size_t r = 1; r < options_.ranks; ++r) work.add_copy(place(r), place(0), bytes);
  }

  const Options options_;
  const std::uint64_t bytes_;
  Host host_;
  std::uint64_t sequence_ = 0;
};

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  using namespace tensorlane;
  Options options;
  options.ranks = 8;
  CLI::App app("What workers gain where the ranks of one host sum a tensor");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64));
  app.add_option("--workers", options.workers, "threads beside the lane")->check(CLI::Range(0, 64));
  app.add_option("--mib", options.mib, "of each rank's tensor")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "measured")->check(CLI::Range(1, 1'000'000));
  app.add_option("--spin", options.spin_us, "microseconds that an idle thread polls before it blocks");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("work_bench"));  // standard output is the result's
  fmt::print("{}\n", Bench(options).run().dump());
}
