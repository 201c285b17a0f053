// `tensorlane classes`: the fabric's classes, in the words of each communication library.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "monitor/cli/classes.h"
#include "monitor/cli/commands.h"

namespace tensorlane::cli {
namespace {

struct ClassesArguments {
  std::string fabric, stack, out;
  bool json = false;
};

// Whole or not at all: training processes may read it at any moment, and what is there stays where this fails.
Status replace_file(const std::string& path, const std::string& text) {
  const std::string draft = fmt::format("{}.{}", path, getpid());
  std::ofstream file(draft, std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(draft, path, error);
  if (file && !error) return {};
  const int reason = error ? error.value() : errno;
  std::filesystem::remove(draft, error);
  return Status(Code::kUnavailable, fmt::format("the file cannot be written ({})", std::strerror(reason)), path,
                "name one in a folder that you may write");
}

Result<int> run(const ClassesArguments& args) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const std::string text,
                      args.json ? classes_json(fabric, args.stack) : classes_text(fabric, args.stack));
  if (args.out.empty()) {
    fmt::print("{}", text);
    return 0;
  }
  TL_RETURN_IF_ERROR(replace_file(args.out, text));
  return 0;
}

}  // namespace

void add_classes_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ClassesArguments>();
  CLI::App* classes =
      app.add_subcommand("classes", "What NCCL, UCX and others are to be told, for the classes of a fabric");
  classes->footer(
      "Example:\n  tensorlane classes --for nccl --fabric fabric.yaml\n"
      "  tensorlane classes --for nccl --fabric fabric.yaml --json --out /etc/tensorlane/nccl-policy.json\n"
      "The second writes the policy that training processes read: TENSORLANE_NCCL_POLICY names it. docs/nccl.md tells "
      "the\nwhole way.");
  classes->add_option("--for", args->stack, "nccl, ucx, ucc, gloo, mooncake, nvshmem, or env: shell variables")
      ->required()
      ->check(CLI::IsMember(class_stacks()))
      ->type_name("LIBRARY");
  classes->add_option("--fabric", args->fabric, "The fabric file")->required()->type_name("FILE");
  classes->add_flag("--json", args->json, "Print one JSON object");
  classes
      ->add_option("--out", args->out, "Write it to this file instead, whole or not at all; what is there is replaced")
      ->type_name("FILE");
  classes->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
