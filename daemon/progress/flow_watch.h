// The age of what a flow should deliver (law 21). Pure: time and counts come in, verdicts go out.
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::progress {

struct Limits {
  Duration late_after;  // what stands still for so long is reported, and again each time that it has grown by as much
  Duration late_error;  // ... and then ends the job; where nothing is under way, late_after later (FlowWatch)
};

// What both ends of a flow have announced. Counts only grow.
struct FlowCounts {
  std::uint64_t given = 0;      // frames that the sender has given to its transport
  std::uint64_t delivered = 0;  // frames that the receiver has delivered, as far as the sender has heard
  bool held = false;            // more could be given, and is not
};

// One flow, at its sender. One thread. A flow of which nothing is under way is mostly held by another one, which fills
// the window of its class: the other one is the fault, and its error comes first.
class FlowWatch {
 public:
  enum class Verdict : std::uint8_t {
    kNothing,  // nothing new to say
    kLate,     // it stands still, for age()
    kStarved,  // more urgent traffic has kept it standing, for starved(): reported, never an error
    kMoves,    // it was reported, and goes on
    kError,    // it has stood still for late_error
  };

  // Call it a few times in late_after. `filled`: since the last call more urgent classes have filled a port on the way.
  Verdict look(const FlowCounts& counts, bool filled, Time now, const Limits& limits);

  // How long it has delivered nothing while it could have.
  Duration age() const { return age_; }
  // How long it has delivered nothing because of more urgent traffic.
  Duration starved() const { return starved_; }

 private:
  Verdict reset(const FlowCounts& counts);

  Time looked_;
  std::uint64_t delivered_ = 0;
  bool waits_ = false, reported_ = false;
  Duration age_{}, starved_{}, next_late_{}, next_starved_{};
};

}  // namespace tensorlane::progress
