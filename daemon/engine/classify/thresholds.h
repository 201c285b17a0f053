// Classes by thresholds on urgency (Geryon, section III).
#pragma once

#include <span>

#include "common/base/units.h"

namespace tensorlane::engine {

// K-1 descending thresholds make K classes: class i takes what is at least thresholds[i], the last class takes the
// rest.
constexpr ClassId class_by_thresholds(std::span<const double> thresholds, double urgency) {
  std::uint8_t cls = 0;
  while (cls < thresholds.size() && urgency < thresholds[cls]) ++cls;
  return ClassId(cls);
}

}  // namespace tensorlane::engine
