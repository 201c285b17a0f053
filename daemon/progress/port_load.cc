#include "daemon/progress/port_load.h"

#include <algorithm>

namespace tensorlane::progress {
namespace {

constexpr double kFilled = 0.5;      // of the port's speed
constexpr double kLeastSpeed = 1e9;  // bit/s, of a port whose link is not described
constexpr Duration kLeastStep = milliseconds(10);
constexpr std::int64_t kOldSteps = 4;  // a sample that is followed by none for so many steps says nothing any more

}  // namespace

void PortLoad::sample(Time at, Time now, const ClassBytes& bytes) {
  if (received_ != Time() && at - at_ < kLeastStep) return;
  if (received_ != Time()) {
    step_ = at - at_;
    for (std::size_t c = 0; c < bytes.size(); ++c) grown_[c] = bytes[c] - std::min(last_[c], bytes[c]);
    peak_ = std::max(peak_, rate(kMaxDataClasses));
  }
  at_ = at;
  received_ = now;
  last_ = bytes;
}

// Of the control class and of the first `classes` data classes.
double PortLoad::rate(std::size_t classes) const {
  std::uint64_t bytes = grown_.back();
  for (std::size_t c = 0; c < classes; ++c) bytes += grown_[c];
  return static_cast<double>(bytes) * 8 / to_seconds(step_);
}

bool PortLoad::filled_above(ClassId cls, Time now) const {
  if (step_ == Duration() || cls == kControlClass || now - received_ > step_ * kOldSteps) return false;
  const double speed = speed_.value > 0 ? static_cast<double>(speed_.value) : std::max(peak_, kLeastSpeed);
  return rate(cls.value) >= speed * kFilled;
}

}  // namespace tensorlane::progress
