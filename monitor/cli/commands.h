// The subcommands of `tensorlane`. Each lives in a file of its own; main.cc lists them.
#pragma once

#include "common/command_line/command_line.h"

namespace tensorlane::cli {

// A Status of kInvalidArgument (usage, configuration) becomes exit status 2, every other one 1.
using command_line::Invocation;

// Each adds one subcommand to `app`. `chosen` outlives the parse.
void add_bench_command(CLI::App& app, Invocation& chosen);
void add_calibrate_command(CLI::App& app, Invocation& chosen);
void add_classes_command(CLI::App& app, Invocation& chosen);
void add_doctor_command(CLI::App& app, Invocation& chosen);
void add_explain_command(CLI::App& app, Invocation& chosen);
void add_lab_command(CLI::App& app, Invocation& chosen);
void add_make_key_command(CLI::App& app, Invocation& chosen);
void add_order_command(CLI::App& app, Invocation& chosen);
void add_plan_command(CLI::App& app, Invocation& chosen);
void add_replay_command(CLI::App& app, Invocation& chosen);
void add_report_command(CLI::App& app, Invocation& chosen);
void add_run_command(CLI::App& app, Invocation& chosen);
void add_status_command(CLI::App& app, Invocation& chosen);
void add_timeline_command(CLI::App& app, Invocation& chosen);
void add_top_command(CLI::App& app, Invocation& chosen);
void add_verify_command(CLI::App& app, Invocation& chosen);

}  // namespace tensorlane::cli
