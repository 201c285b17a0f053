// What a slice costs from the client's submission to its completion: two hosts in this process, each with a lane, its
// engine, a transport and the reducer, or several, sum a tensor again and again. Every sum is checked before anything
// is printed.
//
//   lane_bench [--transport tcp|rdma --address A] [--slice-bytes N] [--slices N] [--rounds N] [--warm-up N] [--spin US]
//   [--workers N] [--rails N] [--lanes N]
//
// Prints one line of JSON: "slices" (data operations that both hosts sent in the measured rounds), "frames" (those and
// control frames), "allocations" (calls of operator new on the lanes' threads meanwhile), "seconds", "sleeps",
// "microseconds_per_slice" (median and p99 of the rounds). Two things look at the measured rounds from outside, see
// tests/bench/README.md: strace, for which access("/lane_bench/begin") and ("/lane_bench/end") mark them, and
// callgrind, which is run with two numbers of rounds.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "tests/allocations/allocation_count.h"
#include "two_hosts.h"

namespace tensorlane {
namespace {

struct Options : bench::PairOptions {
  std::uint32_t rounds = 20, warm_up = 3;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), pair_(options) {}

  nlohmann::json run() {
    for (std::uint32_t i = 0; i < options_.warm_up; ++i) pair_.round();
    std::vector<double> times(options_.rounds);
    const std::uint64_t data = count({ClassId(0)}), all = count({ClassId(0), kControlClass});
    const std::uint64_t slept = sleeps();
    [[maybe_unused]] int marked = ::access("/lane_bench/begin", F_OK);
    counting::count_allocations(counting::CountedThreads::kLanes);
    for (double& seconds : times) seconds = pair_.round();
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
  std::uint64_t count(std::initializer_list<ClassId> classes) const {
    std::uint64_t sum = 0;
    for (const auto& host : pair_.hosts()) {
      for (const ClassId cls : classes) sum += host->operations(cls);
    }
    return sum;
  }
  std::uint64_t sleeps() const { return pair_.hosts()[0]->sleeps() + pair_.hosts()[1]->sleeps(); }

  const Options& options_;
  bench::TwoHosts pair_;
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
  app.add_option("--rails", options.rails, "of each host; more than one needs tcp")
      ->check(CLI::Range(std::size_t{1}, kMaxRails));
  app.add_flag("!--no-spans", options.spans, "Do not keep the last spans");
  app.add_option("--lanes", options.lanes, "threads of each host that drive them")->check(CLI::Range(1, 16));
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("lane_bench"));  // standard output is the result's
  fmt::print("{}\n", Bench(options).run().dump());
}
