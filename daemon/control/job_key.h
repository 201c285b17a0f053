// What makes two ranks members of one job: who runs it, where its rank 0 is, and its name.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/units.h"

namespace tensorlane::control {

// The key of a job on every host. torchrun calls every run "none" unless it is told otherwise, so a name alone would
// collide between users and, with several runs at once, within one: their leader or its MASTER_PORT differs.
struct JobKey {
  std::uint32_t uid = 0;          // of every rank's process; the same number on all hosts
  std::string leader;             // the host of rank 0, as the fabric file names it
  std::uint16_t leader_port = 0;  // MASTER_PORT; 0 where the ranks have none
  std::string name;               // TENSORLANE_JOB, TORCHELASTIC_RUN_ID

  // Every key has a text of its own: "1000@h0:29500/none". Proofs speak for it.
  std::string text() const;
  // What messages, flows and tables of all daemons call the job: a digest of text() that nobody can aim at.
  JobId id() const;
  friend bool operator==(const JobKey&, const JobKey&) = default;
};

}  // namespace tensorlane::control
