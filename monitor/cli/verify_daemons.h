// `tensorlane-probe` as the daemons of a fabric run it: asked through the daemon of this host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "monitor/cli/verify_hands.h"

namespace tensorlane::cli {

struct DaemonHandsOptions {
  std::string socket;              // of this host's daemon
  std::vector<std::string> hosts;  // by their names in the fabric file
  bool beside_jobs = false;        // also on hosts where a job runs
};

// A host's daemon that does not answer, or refuses, says so at the first question.
std::unique_ptr<ProbeHands> ask_by_daemons(const DaemonHandsOptions& options);

}  // namespace tensorlane::cli
