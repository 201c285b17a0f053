// Whether threads turn. A thread that turns counts; somebody else looks at the counts now and then. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::progress {

// One thread.
class Pulse {
 public:
  // A thread whose count has not moved for longer than `patience` stands still.
  explicit Pulse(Duration patience) : patience_(patience) {}

  // A thread, and its count now. Call it for every thread, a few times in `patience`.
  void look(const std::string& thread, std::uint64_t count, Time now);
  // The threads that stand still, in the order in which they were first looked at.
  std::vector<std::string> still(Time now) const;

 private:
  struct Thread {
    std::string name;
    std::uint64_t count = 0;
    Time moved;
  };
  Duration patience_;
  std::vector<Thread> threads_;
};

}  // namespace tensorlane::progress
