// `tensorlane-switch`: the configuration of switches and NICs.
#include "switch-config/cli/commands.h"

namespace {

using namespace tensorlane;

constexpr command_line::AddSubcommand kSubcommands[] = {
    switches::add_apply_command,   switches::add_deadlock_command, switches::add_diff_command,
    switches::add_example_command, switches::add_headroom_command, switches::add_lint_command,
    switches::add_render_command,  switches::add_trace_command,
};

// Every failure is one of the input; 1 says that there are findings or differences.
int exit_status(Code) {
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  return command_line::run(
      {"tensorlane-switch", TENSORLANE_VERSION,
       "Configures switches and NICs so that they honour the classes of fabric.yaml", kSubcommands, exit_status},
      argc, argv);
}
