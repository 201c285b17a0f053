// tl_config_t and the environment, resolved.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

struct Settings {
  std::uint32_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string job, secret, leader, socket;
  std::uint16_t leader_port = 0;
  Duration timeout{};
  bool gpu_sums = false;  // the ranks of a host sum on their GPUs what they can: TENSORLANE_GPU_SUMS
  Duration spin{};        // how long a wait looks before it sleeps: TENSORLANE_SPIN_US, else by the number of cores
};

// What the program says comes first, then the environment, then the default (the table is in tensorlane.h). `config`
// may be null. Errors: InvalidArgument (names the field or variable, its value and what to set), VersionMismatch.
Result<Settings> resolve(const tl_config_t* config);

}  // namespace tensorlane::client
