// The subcommands of `tensorlane`. Each lives in a file of its own; main.cc lists them.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "common/base/status.h"

namespace tensorlane::cli {

// What the command line asks for. A subcommand's parse callback sets `run`; main calls it after parsing. The answer is
// the exit status. A Status of kInvalidArgument (usage, configuration) becomes exit status 2, every other one 1, and is
// printed as one line.
struct Invocation {
  std::function<Result<int>()> run;
};

// Each adds one subcommand to `app`. `chosen` outlives the parse.
void add_bench_command(CLI::App& app, Invocation& chosen);
void add_calibrate_command(CLI::App& app, Invocation& chosen);
void add_lab_command(CLI::App& app, Invocation& chosen);
void add_make_key_command(CLI::App& app, Invocation& chosen);
void add_order_command(CLI::App& app, Invocation& chosen);
void add_plan_command(CLI::App& app, Invocation& chosen);
void add_replay_command(CLI::App& app, Invocation& chosen);
void add_run_command(CLI::App& app, Invocation& chosen);
void add_status_command(CLI::App& app, Invocation& chosen);

}  // namespace tensorlane::cli
