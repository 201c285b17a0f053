// `tensorlane`: the command for people. Parses the command line, runs one subcommand, prints its error as one line.
#include <cstdio>
#include <string>

#include "monitor/cli/commands.h"

namespace {

using tensorlane::Code;
using tensorlane::Status;
using tensorlane::cli::Invocation;

constexpr int kExitRunTime = 1;
constexpr int kExitUsage = 2;

constexpr void (*kSubcommands[])(CLI::App&, Invocation&) = {
    tensorlane::cli::add_bench_command,  tensorlane::cli::add_lab_command,       tensorlane::cli::add_run_command,
    tensorlane::cli::add_status_command, tensorlane::cli::add_make_key_command,  tensorlane::cli::add_order_command,
    tensorlane::cli::add_plan_command,   tensorlane::cli::add_calibrate_command, tensorlane::cli::add_replay_command,
};

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.error_line().c_str());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitRunTime;
}

// The subcommand that was being parsed: "tensorlane lab up".
std::string parsed_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) path += " " + parsed_path(*sub);
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A priority transport for distributed training", "tensorlane");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tensorlane ") + TENSORLANE_VERSION);
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
