// `tensorlane-probe` on hosts that nothing is installed on: carried there by a remote shell, and run from a temporary
// file, which goes with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "monitor/cli/verify_hands.h"

namespace tensorlane::cli {

inline constexpr const char* kDefaultShell = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}";

struct AgentOptions {
  std::vector<std::string> hosts;  // what {host} stands for: "gpu01", "user@gpu02"
  // A command of this host's shell that runs `sh` on the host when "sh" is put behind it.
  std::string shell = kDefaultShell;
  std::string program;  // to send: the path of tensorlane-probe
};

// A host that cannot be reached says so at the first question. Errors: kInvalidArgument (a shell without {host}),
// kNotFound (no program), kResourceExhausted.
Result<std::unique_ptr<ProbeHands>> start_agents(const AgentOptions& options);

// Where this command's tensorlane-probe is: beside it, else in PATH. kNotFound.
Result<std::string> find_probe_program();

}  // namespace tensorlane::cli
