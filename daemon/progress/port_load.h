// How much of one direction of a port the classes take (law 21). Pure.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::progress {

// Payload that a port has carried, by class; of the control class, which goes before all others, in the last place.
// Grows only.
using ClassBytes = std::array<std::uint64_t, kMaxDataClasses + 1>;

// One thread.
class PortLoad {
 public:
  // `speed` of the link; 0: not known, then the highest rate that was seen counts, and at least 1 Gbit/s.
  explicit PortLoad(BitsPerSecond speed = {}) : speed_(speed) {}

  // `at`: when it was counted, by the clock of the host that counted; `now`: by ours. Two that are less than 10 ms
  // apart are one.
  void sample(Time at, Time now, const ClassBytes& bytes);
  // Whether classes more urgent than `cls` took at least half of the port between the last two samples. Not when the
  // last one is old.
  bool filled_above(ClassId cls, Time now) const;

 private:
  double rate(std::size_t classes) const;

  BitsPerSecond speed_;
  double peak_ = 0;  // bit/s
  Time at_, received_;
  Duration step_{};  // between the last two samples; 0: there are no two
  ClassBytes last_{}, grown_{};
};

}  // namespace tensorlane::progress
