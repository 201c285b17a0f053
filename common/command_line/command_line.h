// A command with subcommands, each in a file of its own: parses the command line, runs the one that was chosen, and
// prints its error as one line that begins with the command's name. `tensorlane` and `tensorlane-switch` are such
// commands.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "common/base/status.h"

namespace tensorlane::command_line {

// What the command line asks for. A subcommand's parse callback sets `run`, which is called after parsing and answers
// the exit status.
struct Invocation {
  std::function<Result<int>()> run;
};

// Adds one subcommand to `app`. `chosen` outlives the parse.
using AddSubcommand = void (*)(CLI::App& app, Invocation& chosen);

struct Command {
  std::string name, version, about;
  std::span<const AddSubcommand> subcommands;
  int (*exit_status)(Code);  // of a subcommand that has failed; usage is kInvalidArgument
};

// A number within these bounds. Unlike CLI::Range it refuses what is no number, as "nan".
CLI::Validator between(double low, double high);

// The whole of main(): the answer is the exit status.
int run(const Command& command, int argc, char** argv);

}  // namespace tensorlane::command_line
