#include "daemon/progress/flow_watch.h"

#include <algorithm>
#include <utility>

namespace tensorlane::progress {
namespace {

// Of age that is taken back for each second of starvation.
constexpr std::int64_t kForgiven = 4;
// A caller that has not looked for longer than this share of late_after has stood still itself: that is not the flow's.
constexpr std::int64_t kLongestStep = 4;

}  // namespace

FlowWatch::Verdict FlowWatch::reset(const FlowCounts& counts) {
  delivered_ = counts.delivered;
  age_ = starved_ = next_late_ = next_starved_ = Duration();
  return std::exchange(reported_, false) ? Verdict::kMoves : Verdict::kNothing;
}

FlowWatch::Verdict FlowWatch::look(const FlowCounts& counts, bool filled, Time now, const Limits& limits) {
  const Duration step = std::clamp(now - looked_, Duration(0), Duration(limits.late_after.value / kLongestStep));
  looked_ = now;
  const bool under_way = counts.given > counts.delivered;
  const bool waits = counts.held || under_way;
  const bool begins = waits && !std::exchange(waits_, waits);
  if (!waits || begins || counts.delivered != delivered_) return reset(counts);
  if (filled) {
    starved_ += step;
    age_ = std::max(Duration(0), age_ - step * kForgiven);
  } else {
    age_ += step;
  }
  if (age_ >= (under_way ? limits.late_error : limits.late_error + limits.late_after)) return Verdict::kError;
  if (age_ >= next_late_ + limits.late_after) {
    next_late_ = age_;
    reported_ = true;
    return Verdict::kLate;
  }
  if (starved_ >= next_starved_ + limits.late_after) {
    next_starved_ = starved_;
    reported_ = true;
    return Verdict::kStarved;
  }
  return Verdict::kNothing;
}

}  // namespace tensorlane::progress
