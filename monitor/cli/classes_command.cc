// `tensorlane classes`: the fabric's classes, in the words of each communication library.
#include <memory>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "monitor/cli/classes.h"
#include "monitor/cli/commands.h"

namespace tensorlane::cli {
namespace {

struct Arguments {
  std::string fabric, stack;
  bool json = false;
};

Result<int> run(const Arguments& args) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const std::string text,
                      args.json ? classes_json(fabric, args.stack) : classes_text(fabric, args.stack));
  fmt::print("{}", text);
  return 0;
}

}  // namespace

void add_classes_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<Arguments>();
  CLI::App* classes =
      app.add_subcommand("classes", "What NCCL, UCX and others are to be told, for the classes of a fabric");
  classes->footer(
      "Example:\n  tensorlane classes --for nccl --fabric fabric.yaml\n"
      "  tensorlane classes --for nccl --fabric fabric.yaml --json > /etc/tensorlane/nccl-policy.json\n"
      "The second writes the policy that training processes read: TENSORLANE_NCCL_POLICY names it. docs/nccl.md tells "
      "the\nwhole way.");
  classes->add_option("--for", args->stack, "nccl, ucx, ucc, gloo, mooncake, nvshmem, or env: shell variables")
      ->required()
      ->check(CLI::IsMember(class_stacks()))
      ->type_name("LIBRARY");
  classes->add_option("--fabric", args->fabric, "The fabric file")->required()->type_name("FILE");
  classes->add_flag("--json", args->json, "Print one JSON object");
  classes->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
