// How the ranks of a process group find each other.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

struct Joined {
  tl_context_t* context = nullptr;
  std::string job;  // that no other call has
};

// Makes the context of one process group of `size` ranks, two or more, all of which call it. A group is a tensorlane
// job of its own: the one place that would change where a group shared the flows of its parent.
//
// The ranks agree through `store`, whose keys are this group's alone. Rank 0 is the leader: it chooses a job name that
// no other call has, and a secret where the environment has none (TENSORLANE_JOB_SECRET, TENSORLANE_JOB_SECRET_FILE),
// which is in the store until every rank has read it: whoever can read the store meanwhile can read the secret. Keys of
// an earlier call that has failed, or of processes that have died, do no harm.
//
// Blocks for at most `timeout`, or, as long as not all ranks have come, until `*stop`, if there is one. Throws
// DistBackendError, which names the ranks that have not come, or says what tl_init() has said. Any thread.
Joined join_group(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, const std::string& group,
                  const std::atomic<bool>* stop = nullptr);

}  // namespace tensorlane::torch_backend
