#include "common/command_line/command_line.h"

#include <cstdio>

#include "common/base/error_line.h"

namespace tensorlane::command_line {
namespace {

// The subcommand that was being parsed: "tensorlane lab up".
std::string parsed_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) path += " " + parsed_path(*sub);
  return path;
}

int fail(const Command& command, const Status& status) {
  std::fprintf(stderr, "%s\n", error_line(command.name, status).c_str());
  return command.exit_status(status.code());
}

}  // namespace

int run(const Command& command, int argc, char** argv) {
  CLI::App app(command.about, command.name);
  app.require_subcommand(1);
  app.set_version_flag("--version", command.name + " " + command.version);
  Invocation chosen;
  for (const AddSubcommand add : command.subcommands) add(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& bad) {
    const std::string path = parsed_path(app);
    return fail(command, Status(Code::kInvalidArgument, bad.what(), path, "see `" + path + " --help`"));
  }
  const auto exit_status = chosen.run();
  return exit_status.ok() ? *exit_status : fail(command, exit_status.status());
}

}  // namespace tensorlane::command_line
