#include "common/command_line/command_line.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "common/base/error_line.h"
#include "common/base/suggestion.h"
#include "common/base/text.h"

namespace tensorlane::command_line {
namespace {

// The subcommand that was being parsed: "tensorlane lab up".
std::string parsed_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) path += " " + parsed_path(*sub);
  return path;
}

const CLI::App& deepest(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : deepest(*parsed.front());
}

// To CLI11 a word in the place of a subcommand is one word too many, which it would say last: that the subcommand is
// missing comes first.
Status wrong_usage(const CLI::App& app, const CLI::ParseError& bad) {
  const std::string path = parsed_path(app);
  const std::string help = "see `" + path + " --help`";
  const CLI::App& last = deepest(app);
  const std::vector<std::string> unknown = app.remaining(true);
  if (last.get_require_subcommand_min() == 0 || unknown.empty())
    return {Code::kInvalidArgument, bad.what(), path, help};
  const std::string& word = unknown.front();
  const bool option = word.starts_with('-');
  std::vector<std::string_view> known;
  for (const CLI::App* sub : last.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(sub->get_name());
  return {Code::kInvalidArgument, std::string("unknown ") + (option ? "option '" : "command '") + printable(word) + "'",
          path, option ? help : suggestion(word, known) + help};
}

int fail(const Command& command, const Status& status) {
  std::fprintf(stderr, "%s\n", error_line(command.name, status).c_str());
  return command.exit_status(status.code());
}

// The exit status of what was said, or that it could not be said: people and scripts must not take half of it for all.
Result<int> written(const Command& command, const std::function<Result<int>()>& say) {
  const auto lost = [&command](const std::string& why) {
    return Status(Code::kUnavailable, why, "the output of " + command.name,
                  "make room where it goes, or write elsewhere");
  };
  try {
    Result<int> exit_status = say();
    if (!exit_status.ok()) return exit_status;
    if (std::fflush(stdout) != 0) return lost(std::strerror(errno));
    if (std::ferror(stdout) != 0) return lost("a part of it could not be written");
    return exit_status;
  } catch (const std::system_error& error) {  // by which fmt says so
    if (std::ferror(stdout) == 0) throw;
    return lost(error.code().message());
  }
}

}  // namespace

CLI::Validator between(double low, double high) {
  const std::string bounds = fmt::format("{} to {}", low, high);
  return CLI::Validator(
      [low, high, bounds](const std::string& text) {
        double number = 0;
        const bool is_number = CLI::detail::lexical_cast(text, number);
        return is_number && number >= low && number <= high ? std::string()
                                                            : fmt::format("'{}' is not within {}", text, bounds);
      },
      bounds);
}

int run(const Command& command, int argc, char** argv) {
  CLI::App app(command.about, command.name);
  app.require_subcommand(1);
  app.set_version_flag("--version", command.name + " " + command.version);
  Invocation chosen;
  for (const AddSubcommand add : command.subcommands) add(app, chosen);
  std::function<Result<int>()> say = [&chosen] { return chosen.run(); };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    say = [&app, help_or_version] { return app.exit(help_or_version); };
  } catch (const CLI::ParseError& bad) {
    return fail(command, wrong_usage(app, bad));
  }
  const Result<int> exit_status = written(command, say);
  return exit_status.ok() ? *exit_status : fail(command, exit_status.status());
}

}  // namespace tensorlane::command_line
