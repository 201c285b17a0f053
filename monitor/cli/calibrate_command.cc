// `tensorlane calibrate`: the command line.
#include <cstdlib>
#include <memory>

#include "common/fabric/fabric.h"
#include "monitor/cli/calibrate.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

constexpr const char* kExample =
    "A rank of a job of two ranks on two hosts: RANK, WORLD_SIZE, MASTER_ADDR, TENSORLANE_JOB... are set as for "
    "training.\nExample: between two hosts of a lab\n"
    "  tensorlane run -n 2 --hosts lab -- tensorlane calibrate --json network.json\n"
    "  tensorlane plan --model vgg-19 --batch 64 --gpu-images-per-second 36.9 --hosts 8 --network-model network.json";

struct CalibrateArguments {
  std::string json_file, budget = "1 s";
};

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

Result<int> run(const CalibrateArguments& args) {
  CalibrateOptions options;
  options.socket = daemon_socket();
  options.job = variable("TENSORLANE_JOB", variable("TORCHELASTIC_RUN_ID", "default"));
  options.json_file = args.json_file;
  TL_ASSIGN_OR_RETURN(options.budget, fabric::parse_duration(args.budget));
  return run_calibrate(options);
}

}  // namespace

void add_calibrate_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<CalibrateArguments>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure the fabric between two hosts as a job gets it: a linear model, and the batching threshold");
  command->footer(kExample);
  command->add_option("--json", args->json_file, "Write the model to this file (rank 0)");
  command->add_option("--budget", args->budget, "Time for each class and size")->capture_default_str();
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
