// `tensorlane-switch deadlock`: whether lossless traffic of a fabric can stop itself for good.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "common/fabric/fabric.h"
#include "switch-config/cli/commands.h"
#include "switch-config/deadlock/check.h"
#include "switch-config/deadlock/fabric_network.h"
#include "switch-config/findings/findings.h"

namespace tensorlane::switches {
namespace {

using deadlock::Routing;

struct DeadlockArguments {
  std::string fabric;
  std::string routing;
  unsigned failures = 0;
  bool json = false;
};

Result<std::optional<Routing>> routing_of(const std::string& text) {
  if (text.empty()) return std::optional<Routing>();
  if (text == "up-down") return std::optional(Routing::kUpDown);
  if (text == "shortest") return std::optional(Routing::kShortest);
  if (text == "given") return std::optional(Routing::kGiven);
  return Status(Code::kInvalidArgument, fmt::format("the routing '{}' is unknown", text), "--routing",
                "say up-down, shortest or given");
}

Result<int> run(const DeadlockArguments& args) {
  TL_ASSIGN_OR_RETURN(const auto routing, routing_of(args.routing));
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const deadlock::Network network, deadlock::network_of(fabric, routing));
  const deadlock::Report report = deadlock::check(network, args.failures == 1);
  const findings::Report found = deadlock::findings_of(report, fabric.classes);
  if (args.json) {
    fmt::print("{}", findings::to_json(found));
    return findings::exit_status(found);
  }
  fmt::print("{}", findings::to_text(found));
  fmt::print("{} switches and {} links, {} single failures tried, {} pairs of switches with hosts have no route\n",
             fabric.switches.size(), fabric.links.size(), report.failures_tried, report.unreached_pairs);
  return findings::exit_status(found);
}

}  // namespace

void add_deadlock_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<DeadlockArguments>();
  CLI::App* command = app.add_subcommand("deadlock", "Whether lossless buffers can wait for each other in a circle");
  command->footer(
      "Example:\n  tensorlane-switch deadlock --fabric fabric.yaml --failures 1\n"
      "Every cycle is an error that names its buffers hop by hop: each waits for the next, the last for the first. So "
      "is\na route of the file that goes up again after it went down.");
  command->add_option("--fabric", args->fabric, "The fabric file")->required()->type_name("FILE");
  command->add_option("--failures", args->failures, "1: also without each single link and switch")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  command->add_option("--routing", args->routing,
                      "up-down, shortest (no rule about up and down) or given (the file's routes only), instead of the "
                      "file's");
  command->add_flag("--json", args->json, "Print findings as one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
