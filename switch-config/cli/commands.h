// The subcommands of `tensorlane-switch`. Each lives in a file of its own; main.cc lists them.
#pragma once

#include "common/command_line/command_line.h"

namespace tensorlane::switches {

// The exit status is 0 for clean and 1 for findings or differences. Every Status is an input error: exit status 2.
using command_line::Invocation;

// Each adds one subcommand to `app`. `chosen` outlives the parse.
void add_apply_command(CLI::App& app, Invocation& chosen);
void add_deadlock_command(CLI::App& app, Invocation& chosen);
void add_diff_command(CLI::App& app, Invocation& chosen);
void add_example_command(CLI::App& app, Invocation& chosen);
void add_headroom_command(CLI::App& app, Invocation& chosen);
void add_lint_command(CLI::App& app, Invocation& chosen);
void add_render_command(CLI::App& app, Invocation& chosen);
void add_trace_command(CLI::App& app, Invocation& chosen);

}  // namespace tensorlane::switches
