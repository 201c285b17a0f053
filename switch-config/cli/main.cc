// `tensorlane-switch`: the configuration of switches and NICs. Parses the command line, runs one subcommand.
#include <cstdio>
#include <string>

#include "switch-config/cli/commands.h"

namespace {

using tensorlane::Code;
using tensorlane::Status;
using tensorlane::switches::Invocation;

constexpr int kExitInput = 2;

constexpr void (*kSubcommands[])(CLI::App&, Invocation&) = {
    tensorlane::switches::add_deadlock_command, tensorlane::switches::add_example_command,
    tensorlane::switches::add_headroom_command, tensorlane::switches::add_lint_command,
    tensorlane::switches::add_render_command,
};

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.error_line().c_str());
  return kExitInput;
}

// The subcommand that was being parsed: "tensorlane-switch headroom".
std::string parsed_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) path += " " + parsed_path(*sub);
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Configures switches and NICs so that they honour the classes of fabric.yaml", "tensorlane-switch");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tensorlane-switch ") + TENSORLANE_VERSION);
  Invocation chosen;
  for (auto* add : kSubcommands) add(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& bad) {
    const std::string path = parsed_path(app);
    return fail(Status(Code::kInvalidArgument, bad.what(), path, "see `" + path + " --help`"));
  }
  const auto exit_status = chosen.run();
  return exit_status.ok() ? *exit_status : fail(exit_status.status());
}
