// What `tensorlane timeline save` does: fetches the last spans of daemons and writes them as timelines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "monitor/timeline/merge.h"

namespace tensorlane::cli {

struct SaveOptions {
  std::string socket;  // of the daemon that is asked
  std::string out;  // a file; of all hosts, too: then they are merged, unless it is a folder, which gets HOST.json each
  std::string job;  // its name; empty: all jobs that the user may see
  Duration last = seconds(30);
  bool all_hosts = false;  // of the job, while it lives on the asked daemon's host, else of the fabric file
};

struct Saved {
  struct Host {
    std::string name, file;  // empty: it is in the merged one
    std::uint64_t spans = 0, left_out = 0;
    Status error;  // why there is nothing of it
  };
  std::vector<Host> hosts;
  std::optional<timeline::MergeSummary> merged;
};

// What goes wrong with one host of several is in its place. Errors: those of ask_daemons; kNotFound where no host has a
// span; kUnavailable for a file that cannot be written.
Result<Saved> save_spans(const SaveOptions& options);

}  // namespace tensorlane::cli
