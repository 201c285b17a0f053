// tensorlane-swarm: many seeds, one run each; every failure can be replayed from its seed.
#include <CLI/CLI.hpp>

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/base/hash.h"
#include "common/json/json.h"
#include "simulator/swarm/simulation.h"

namespace tensorlane::simulator {
namespace {

constexpr std::uint64_t kTwiceEvery = 25;  // seeds of which every one is run twice, to compare digests
constexpr std::uint64_t kLyingEvery = 10;  // seeds of which one has, beside its run, some with a host that lies
constexpr std::uint64_t kLyingRuns = 20;
constexpr std::uint64_t kLyingMessageRuns = 5;  // ... and of messages
constexpr std::uint64_t kProgressEvery = 50;

struct Options {
  std::uint64_t seeds = 500;
  std::uint64_t first = 1;
  std::string json;
  bool verbose = false;
  bool stop = false;
};

struct Failure {
  std::uint64_t seed;
  Finding finding;
};

struct Report {
  std::vector<Failure> failed;
  std::uint64_t of_sets = 0, in_parts = 0, parts_placed = 0;
  std::uint64_t operations = 0, slices = 0, bytes = 0, demoted = 0, aborts = 0, neighbour_aborts = 0;
  std::uint64_t messages = 0, message_bytes = 0;
  std::uint64_t packets = 0, lost = 0, overflowed = 0, stale = 0, resent = 0, lies = 0, twice = 0;
  Congestion::Counters congestion;
  std::array<std::uint64_t, kFaultKinds> faults{};
  Fnv1a digest;

  void add(const Outcome& o) {
    operations += o.operations;
    of_sets += o.of_sets;
    in_parts += o.in_parts;
    parts_placed += o.parts_placed;
    slices += o.slices;
    bytes += o.bytes;
    demoted += o.demoted;
    aborts += o.aborted ? 1 : 0;
    neighbour_aborts += o.neighbour_aborted ? 1 : 0;
    messages += o.messages;
    message_bytes += o.message_bytes;
    packets += o.packets;
    lost += o.lost;
    overflowed += o.overflowed;
    stale += o.stale;
    resent += o.resent;
    lies += o.lies;
    congestion += o.congestion;
    for (std::size_t i = 0; i < kFaultKinds; ++i) faults[i] += o.faults[i];
    digest.add(o.digest);
  }
};

// The seed that runs, for the handler below.
volatile std::uint64_t running_seed = 0;

// An assertion of the engine, or a fault, ends the process; say at least which seed it was.
void on_abort(int) {
  char text[160];
  const int length =
      std::snprintf(text, sizeof text,
                    "tensorlane: error: the program failed: seed %llu: replay with tensorlane-swarm --seeds 1 --seed "
                    "%llu --verbose\n",
                    static_cast<unsigned long long>(running_seed), static_cast<unsigned long long>(running_seed));
  const auto written = ::write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  (void)written;
  std::_Exit(1);
}

void run_seed(std::uint64_t seed, const Options& options, Report* report) {
  running_seed = seed;
  const Scenario scenario = random_scenario(seed);
  Outcome outcome = Simulation(scenario, options.verbose).run();
  if (!outcome.finding && seed % kTwiceEvery == 0) {
    ++report->twice;
    if (Simulation(scenario).run().digest != outcome.digest) {
      outcome.finding = Finding{"digest", "two runs of the same seed differ"};
    }
  }
  report->add(outcome);
  for (std::uint64_t i = 0; i < kLyingRuns && !outcome.finding && seed % kLyingEvery == 0; ++i) {
    const std::uint64_t number = seed / kLyingEvery * kLyingRuns + i;
    outcome = Simulation(lying_scenario(number, static_cast<Lie>(number % kOperationLies)), options.verbose).run();
    report->add(outcome);
  }
  for (std::uint64_t i = 0; i < kLyingMessageRuns && !outcome.finding && seed % kLyingEvery == 0; ++i) {
    const std::uint64_t number = seed / kLyingEvery * kLyingMessageRuns + i;
    const auto lie = static_cast<Lie>(kOperationLies + number % (kLies - kOperationLies));
    outcome = Simulation(lying_scenario(number, lie), options.verbose).run();
    report->add(outcome);
  }
  if (!outcome.finding) return;
  if (report->failed.empty()) {
    std::fprintf(stderr,
                 "tensorlane: error: checker '%s': seed %llu: replay with tensorlane-swarm --seeds 1 --seed %llu "
                 "--verbose\n%s\n",
                 outcome.finding->checker.c_str(), static_cast<unsigned long long>(seed),
                 static_cast<unsigned long long>(seed), outcome.finding->message.c_str());
  }
  report->failed.push_back({seed, *outcome.finding});
}

Report run_all(const Options& options) {
  Report report;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    run_seed(options.first + i, options, &report);
    if (options.stop && !report.failed.empty()) break;
    if ((i + 1) % kProgressEvery == 0) {
      std::fprintf(stderr, "%llu of %llu seeds, %zu failed\n", static_cast<unsigned long long>(i + 1),
                   static_cast<unsigned long long>(options.seeds), report.failed.size());
    }
  }
  return report;
}

nlohmann::json to_json(const Options& options, const Report& report) {
  nlohmann::json json;
  json["seeds"] = options.seeds;
  json["first"] = options.first;
  json["failed"] = nlohmann::json::array();
  for (const Failure& f : report.failed) {
    json["failed"].push_back({{"seed", f.seed}, {"checker", f.finding.checker}, {"message", f.finding.message}});
  }
  json["operations"] = report.operations;
  json["operations_of_sets"] = report.of_sets;
  json["operations_in_parts"] = report.in_parts;
  json["parts_in_place"] = report.parts_placed;
  json["slices"] = report.slices;
  json["bytes"] = report.bytes;
  json["demoted_bytes"] = report.demoted;
  json["messages"] = report.messages;
  json["message_bytes"] = report.message_bytes;
  json["aborts"] = report.aborts;
  json["neighbour_aborts"] = report.neighbour_aborts;
  json["faults"] = {{"packets", report.packets},
                    {"lost", report.lost},
                    {"overflowed", report.overflowed},
                    {"stale", report.stale},
                    {"resent", report.resent}};
  for (std::size_t i = 0; i < kFaultKinds; ++i) json["faults"][kFaultNames[i]] = report.faults[i];
  json["congestion"] = {{"pauses", report.congestion.pauses},
                        {"notifications", report.congestion.notified},
                        {"refused", report.congestion.refused},
                        {"marked", report.congestion.marked},
                        {"foreign", report.congestion.foreign}};
  json["lies"] = report.lies;
  json["run_twice"] = report.twice;
  json["digest"] = fmt::format("{:016x}", report.digest.value());
  return json;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Runs the engine of tensorlane under a virtual clock through random schedules and faults, one per seed, and "
      "checks every rule."};
  app.footer(
      "Example:\n  tensorlane-swarm --seeds 500 --json swarm.json\n  tensorlane-swarm --seeds 1 --seed 17 --verbose");
  app.add_option("--seeds", options.seeds, "How many seeds to run")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.first, "The first of them")->capture_default_str();
  app.add_option("--json", options.json, "Write the report to this file");
  app.add_flag("--verbose", options.verbose, "Print every event; for a single seed");
  app.add_flag("--stop-at-first", options.stop, "End with the first failing seed");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tensorlane: error: %s: command line: see tensorlane-swarm --help\n", error.what());
    return 2;
  }
  if (options.verbose && options.seeds != 1) {
    std::fprintf(stderr,
                 "tensorlane: error: --verbose prints one run: command line: give --seeds 1 and --seed with it\n");
    return 2;
  }
  std::ofstream file;
  if (!options.json.empty()) {
    file.open(options.json);
    if (!file) {
      std::fprintf(stderr, "tensorlane: error: cannot write: %s: name a file in a folder that exists\n",
                   options.json.c_str());
      return 2;
    }
  }
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  std::signal(SIGFPE, on_abort);
  const Report report = run_all(options);
  const nlohmann::json json = to_json(options, report);
  if (file.is_open()) file << json.dump(2) << '\n';
  std::printf("%llu seeds: %zu failed, %llu operations, %llu aborts, digest %s\n",
              static_cast<unsigned long long>(options.seeds), report.failed.size(),
              static_cast<unsigned long long>(report.operations), static_cast<unsigned long long>(report.aborts),
              json["digest"].get<std::string>().c_str());
  return report.failed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tensorlane::simulator

int main(int argc, char** argv) {
  return tensorlane::simulator::run(argc, argv);
}
