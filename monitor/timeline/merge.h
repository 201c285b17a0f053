// Timelines of several hosts as one trace, on one clock, with an arrow from each send to its arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "monitor/timeline/clock_fit.h"

namespace tensorlane::timeline {

struct MergeOptions {
  std::vector<std::string> files;
  std::string out;  // made, or replaced, as this user's own (files::create)
  // Spans that end before or begin after are left out: nanoseconds since 1970 by the clock of the first host.
  std::optional<std::int64_t> since, until;
  std::optional<Duration> last;  // `since`, counted back from the end of the last span
  // Called now and then with what was done of what there is to do, in bytes of the files. May be empty.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress;
};

struct MergeSummary {
  struct Host {
    std::string name, boot;
    Offset clock;  // reference: place in `hosts`
    std::uint64_t spans = 0;
  };
  std::vector<Host> hosts;
  std::uint64_t spans = 0;             // written
  std::uint64_t arrows = 0;            // written, each with both ends
  std::uint64_t backward = 0;          // of them, those that seem to arrive before they left
  std::uint64_t alone = 0;             // ends of operations whose other end is in no file, or too far away
  std::uint64_t crowded = 0;           // spans that lie over others, because there were too many rows
  std::uint64_t one_in = 1;            // of how many operations one was compared for the clocks
  std::int64_t clocks_moved = 0;       // ClockFit::moved()
  std::int64_t begin = 0;              // what is 0 in the trace, in nanoseconds since 1970 by the first host's clock
  std::vector<std::string> truncated;  // files that lack their end
};

// Reads every file twice, and a third time where spans are left out. Memory is bounded: about 64 MiB, and 128 KiB for
// each file, whatever their sizes. Errors: those of EventReader; kInvalidArgument where no span is left; kUnavailable
// where `out` cannot be written: then there is no such file.
Result<MergeSummary> merge(const MergeOptions& options);

}  // namespace tensorlane::timeline
