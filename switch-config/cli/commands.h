// The subcommands of `tensorlane-switch`. Each lives in a file of its own; main.cc lists them.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "common/base/status.h"

namespace tensorlane::switches {

// What the command line asks for. A subcommand's parse callback sets `run`; main calls it after parsing. The answer is
// the exit status: 0 clean, 1 findings or differences. Every Status is an input error: exit status 2, one line on
// standard error.
struct Invocation {
  std::function<Result<int>()> run;
};

// Each adds one subcommand to `app`. `chosen` outlives the parse.
void add_deadlock_command(CLI::App& app, Invocation& chosen);
void add_example_command(CLI::App& app, Invocation& chosen);
void add_headroom_command(CLI::App& app, Invocation& chosen);
void add_lint_command(CLI::App& app, Invocation& chosen);
void add_render_command(CLI::App& app, Invocation& chosen);

}  // namespace tensorlane::switches
