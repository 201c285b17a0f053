// `tensorlane make-key`: a CURVE key pair for one daemon.
#include <cstdio>

#include "common/json/json.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {

namespace {

// The secret goes into `secret_file` where one is named, else it is printed, too.
Result<int> print_key_pair(bool json, const std::string& secret_file) {
  TL_ASSIGN_OR_RETURN(const KeyPair pair, make_key_pair());
  nlohmann::json printed{{"public_key", pair.public_key}};
  if (secret_file.empty()) {
    printed["secret_key"] = pair.secret_key;
  } else {
    TL_RETURN_IF_ERROR(write_secret_key(pair, secret_file));
  }
  if (json) {
    std::printf("%s\n", printed.dump().c_str());
  } else {
    for (const auto& [key, value] : printed.items()) std::printf("%s: %s\n", key.c_str(), value.dump().c_str());
  }
  return 0;
}

}  // namespace

void add_make_key_command(CLI::App& app, Invocation& chosen) {
  CLI::App* command = app.add_subcommand("make-key", "Print a key pair for one daemon");
  command->footer(
      "Example:\n  tensorlane make-key --secret-file /etc/tensorlane/gpu01.key\n"
      "The public key goes into fabric.yaml, the secret one into a file that only the daemon may read.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  const auto secret_file = std::make_shared<std::string>();
  command->add_option("--secret-file", *secret_file,
                      "Write the secret key to this new file, readable by its owner only");
  command->callback([=, &chosen] { chosen.run = [=] { return print_key_pair(*json, *secret_file); }; });
}

}  // namespace tensorlane::cli
