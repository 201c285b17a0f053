// Where two senders meet, so that a port gets more than it can carry: what `tensorlane verify --load` measures at.
#pragma once

#include <cstdint>
#include <vector>

#include "monitor/cli/verify_run.h"

namespace tensorlane::cli {

// Two ways that meet for the first time at a port, through which less goes than comes in.
struct Meeting {
  std::size_t high_from = 0, low_from = 0, to = 0;  // hosts
  std::size_t rail = 0;
  std::size_t leg = 0;  // of the topology: out of the switch where they meet; meaningless without a topology
  bool known = false;   // the topology says where
};

// One for each port where two hosts can be made to meet; without a topology one for each receiver.
std::vector<Meeting> find_meetings(const VerifyState& state);

}  // namespace tensorlane::cli
