// The command of a swarm that runs one thing under seeds: its options, its report, and what it says of a seed that
// fails.
#pragma once

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "common/json/json.h"

namespace tensorlane::simulation {

// For the handler of faults.
inline volatile std::uint64_t running_seed = 0;
inline const char* running_swarm = "";

// An assertion, or a fault, ends the process; say at least which seed it was.
inline void on_fault(int) {
  char text[200];
  const auto seed = static_cast<unsigned long long>(running_seed);
  const int length = std::snprintf(text, sizeof text,
                                   "tensorlane: error: the program failed: seed %llu: replay with %s --seeds 1 --seed "
                                   "%llu\n",
                                   seed, running_swarm, seed);
  const auto written = ::write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  (void)written;
  std::_Exit(1);
}

// main() of the swarm called `name`. `run(seed)` answers with an optional finding, which has a checker and a message.
template <typename RunSeed>
int swarm_main(int argc, char** argv, const char* name, const std::string& says, RunSeed run) {
  CLI::App app(says + "\nExample:\n  " + name + " --seeds 500");
  std::uint64_t first = 1, seeds = 500;
  bool stop = false;
  std::string json;
  app.add_option("--seed", first, "The first seed");
  app.add_option("--seeds", seeds, "How many seeds to run");
  app.add_flag("--stop-at-first", stop, "End with the first failing seed");
  app.add_option("--json", json, "Write the report to this file");
  CLI11_PARSE(app, argc, argv);
  running_swarm = name;
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(number, on_fault);
  nlohmann::json failed = nlohmann::json::array();
  for (std::uint64_t seed = first; seed < first + seeds && (failed.empty() || !stop); ++seed) {
    running_seed = seed;
    const auto finding = run(seed);
    if (!finding) continue;
    failed.push_back({{"seed", seed}, {"checker", finding->checker}, {"message", finding->message}});
    const auto number = static_cast<unsigned long long>(seed);
    std::fprintf(stderr, "tensorlane: error: checker '%s': seed %llu: replay with %s --seeds 1 --seed %llu: %s\n",
                 finding->checker.c_str(), number, name, number, finding->message.c_str());
  }
  if (!json.empty())
    std::ofstream(json) << nlohmann::json{{"seeds", seeds}, {"first", first}, {"failed", failed}}.dump(2);
  std::printf("%llu seeds, %zu failed\n", static_cast<unsigned long long>(seeds), failed.size());
  return failed.empty() ? 0 : 1;
}

}  // namespace tensorlane::simulation
