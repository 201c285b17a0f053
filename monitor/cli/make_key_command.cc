// `tensorlane make-key`: a CURVE key pair for one daemon.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "monitor/cli/commands.h"
#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {

namespace {

Result<int> print_key_pair(bool json) {
  TL_ASSIGN_OR_RETURN(const KeyPair pair, make_key_pair());
  if (json) {
    const nlohmann::json printed{{"public_key", pair.public_key}, {"secret_key", pair.secret_key}};
    std::printf("%s\n", printed.dump().c_str());
  } else {
    std::printf("public_key: \"%s\"\nsecret_key: \"%s\"\n", pair.public_key.c_str(), pair.secret_key.c_str());
  }
  return 0;
}

}  // namespace

void add_make_key_command(CLI::App& app, Invocation& chosen) {
  CLI::App* command = app.add_subcommand("make-key", "Print a key pair for one daemon");
  command->footer(
      "Example:\n  tensorlane make-key\n"
      "The public key goes into fabric.yaml, the secret one into a file that only the daemon may read.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([&chosen, json] { chosen.run = [json] { return print_key_pair(*json); }; });
}

}  // namespace tensorlane::cli
