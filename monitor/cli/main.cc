// `tensorlane`: the command for people.
#include "monitor/cli/commands.h"

namespace {

using namespace tensorlane;

constexpr command_line::AddSubcommand kSubcommands[] = {
    cli::add_bench_command,    cli::add_lab_command,      cli::add_run_command,     cli::add_status_command,
    cli::add_make_key_command, cli::add_order_command,    cli::add_plan_command,    cli::add_calibrate_command,
    cli::add_replay_command,   cli::add_doctor_command,   cli::add_explain_command, cli::add_classes_command,
    cli::add_report_command,   cli::add_timeline_command, cli::add_top_command,     cli::add_verify_command,
};

// Usage and configuration, or whatever else went wrong.
int exit_status(Code code) {
  return code == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return command_line::run(
      {"tensorlane", TENSORLANE_VERSION, "A priority transport for distributed training", kSubcommands, exit_status},
      argc, argv);
}
