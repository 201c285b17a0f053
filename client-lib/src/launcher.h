// Who started the ranks: torchrun, Open MPI's mpirun and Slurm's srun each tell a process its place in the job by
// environment variables of their own.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace tensorlane::client {

// The names of a launcher's variables.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  bool speaks_of_all_hosts = false;  // local_world_size does: see tasks_here()
};

// Null where the variable is not set, or empty.
const char* environment(const char* name);

// The one that says which rank this is, or how many there are. Launchers start one another: torchrun's variables come
// before Open MPI's, and those before Slurm's, of which only those of a job step count (in a batch script, Slurm says
// how many tasks the job may have, though there is one process). Where none is set, torchrun's, all of which are
// optional.
const Launcher& launcher();

// The one that speaks of several ranks where torchrun's variables say half of what torchrun would have said: RANK alone
// or WORLD_SIZE alone, as a shell has left it. Null where there is none.
const Launcher* contradicted();

// How many ranks this host has by what Slurm says of all nodes of a step in the order of their numbers ("4(x2),1": four
// each on the first two, one on the third), of which SLURM_NODEID names this one. InvalidArgument for anything else,
// without a place.
Result<std::uint32_t> tasks_here(const std::string& text);

}  // namespace tensorlane::client
