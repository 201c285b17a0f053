// What lanes gain where hosts have several rails: two hosts in this process sum a tensor again and again, with each of
// the given numbers of lanes and workers. They take turns, round by round, so that whatever else the machine does meets
// all of them. Every sum is checked before anything is printed.
//
//   rails_bench [--rails N] [--lanes N...] [--workers N...] [--ranks N] [--mib N] [--slice-kib N] [--rounds N]
//   [--spin US]
//
// Prints one line of JSON: "rows", each with "lanes" and "workers" of each host, the median and p99 of a round's
// seconds, and "gain": how many times as fast as the first row it was, the median and the quartiles of the rounds.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "common/json/json.h"
#include "two_hosts.h"

namespace tensorlane {
namespace {

struct Options : bench::PairOptions {
  std::vector<std::size_t> all_lanes = {1, 2}, all_workers = {0};
  std::uint64_t mib = 16, slice_kib = 256;
  std::uint32_t rounds = 20;
};

// Hosts with some number of lanes and workers, and what they took.
struct Row {
  Row(const bench::PairOptions& options) : lanes(options.lanes), workers(options.workers), hosts(options) {}

  nlohmann::json json(const Row& first) const {
    std::vector<double> gains;
    for (std::size_t i = 0; i < times.size(); ++i) gains.push_back(first.times[i] / times[i]);
    const auto at = [&](double q) { return bench::quantile(gains, q); };
    return {{"lanes", lanes},
            {"workers", workers},
            {"median", bench::quantile(times, 0.5)},
            {"p99", bench::quantile(times, 0.99)},
            {"gain", {{"median", at(0.5)}, {"low", at(0.25)}, {"high", at(0.75)}}}};
  }

  const std::size_t lanes, workers;
  bench::TwoHosts hosts;
  std::vector<double> times;
};

nlohmann::json run(Options options) {
  constexpr std::uint32_t kWarmUp = 3;
  options.slice_bytes = kib(options.slice_kib).value;
  options.slices = static_cast<std::uint32_t>(mib(options.mib).value / options.slice_bytes);
  std::vector<std::unique_ptr<Row>> rows;
  for (const std::size_t workers : options.all_workers) {
    for (const std::size_t lanes : options.all_lanes) {
      options.workers = workers;
      options.lanes = lanes;
      rows.push_back(std::make_unique<Row>(options));
      ++options.transport.pair;
    }
  }
  for (std::uint32_t i = 0; i < options.rounds + kWarmUp; ++i) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Row& row = *rows[(r + i) % rows.size()];  // none always follows the same one
      const double seconds = row.hosts.round();
      if (i >= kWarmUp) row.times.push_back(seconds);
    }
  }
  nlohmann::json printed = nlohmann::json::array();
  for (const auto& row : rows) printed.push_back(row->json(*rows.front()));
  return {{"rails", options.rails},
          {"ranks", options.ranks},
          {"bytes", options.slice_bytes * options.slices},
          {"slice_bytes", options.slice_bytes},
          {"rows", std::move(printed)}};
}

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  using namespace tensorlane;
  Options options;
  options.rails = 2;
  options.staging = mib(16);  // many hosts are in this process
  CLI::App app("What lanes gain where hosts have several rails");
  app.add_option("--rails", options.rails)->check(CLI::Range(std::size_t{1}, kMaxRails));
  app.add_option("--lanes", options.all_lanes, "threads of each host that drive rails")->check(CLI::Range(1, 16));
  app.add_option("--workers", options.all_workers, "threads of each host that sum and copy")->check(CLI::Range(0, 64));
  app.add_option("--ranks", options.ranks, "of each host")->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib, "of each rank's tensor")->check(CLI::Range(1, 1024));
  app.add_option("--slice-kib", options.slice_kib)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "measured")->check(CLI::Range(1, 1'000'000));
  app.add_option("--spin", options.spin_us, "microseconds that an idle thread polls before it blocks");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("rails_bench"));  // standard output is the result's
  fmt::print("{}\n", run(options).dump());
}
