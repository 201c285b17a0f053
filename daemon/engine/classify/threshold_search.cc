#include "daemon/engine/classify/threshold_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "common/base/assert.h"

namespace tensorlane::engine {
namespace {

constexpr double kHopeless = 1.25;         // times a single class: a trial is not worth another iteration
constexpr std::uint32_t kDriftWindow = 8;  // iterations whose mean is compared
constexpr std::size_t kFewestForAFit = 5;  // points of a parabola with both ends

struct Point {
  double cut = 0, seconds = 0;
};

// Where the parabola through three points, of which the middle one is the lowest, is least.
double least_of_parabola(const Point& a, const Point& b, const Point& c) {
  const double left = (b.cut - a.cut) * (b.seconds - c.seconds), right = (b.cut - c.cut) * (b.seconds - a.seconds);
  if (left == right) return b.cut;
  return b.cut - ((b.cut - a.cut) * left - (b.cut - c.cut) * right) / (2 * (left - right));
}

}  // namespace

ThresholdSearch::ThresholdSearch(std::span<const Weighted> tensors, const ThresholdSettings& settings)
    : settings_(settings) {
  TL_ASSERT(settings.counted > 0 && settings.most_classes > 0);
  std::map<double, std::uint64_t, std::greater<>> by_urgency;
  for (const Weighted& tensor : tensors) by_urgency[tensor.urgency] += tensor.size.value;
  for (const auto& [urgency, size] : by_urgency) {
    urgencies_.push_back(urgency);
    bytes_.push_back(size);
  }
  if (urgencies_.size() < 2 || settings.most_classes < 2) phase_ = Phase::kChosen;
}

bool ThresholdSearch::observe(double seconds) {
  TL_ASSERT(seconds > 0);
  const std::vector<double> before = thresholds_;
  ++iteration_;
  if (phase_ == Phase::kSkipping) {
    if (iteration_ >= settings_.skipped) begin_search();
  } else if (phase_ == Phase::kChosen) {
    sum_ = (iteration_ - 1) % kDriftWindow == 0 ? seconds : sum_ + seconds;
    const bool moved = iteration_ % kDriftWindow == 0 && best_.seconds > 0 &&
                       std::abs(sum_ / kDriftWindow / best_.seconds - 1) > settings_.drift;
    if (moved && iteration_ >= settings_.per) begin_search();
  } else {
    if (phase_ != Phase::kSingle) cost_ += std::max(0.0, seconds - single_.seconds);
    if (iteration_ > settings_.settled) {
      sum_ += seconds;
      const std::uint32_t counted = iteration_ - settings_.settled;
      const bool hopeless = phase_ != Phase::kSingle && seconds > kHopeless * single_.seconds;
      if (counted == settings_.counted || hopeless) next(sum_ / counted);
    }
  }
  return thresholds_ != before;
}

void ThresholdSearch::begin_search() {
  ++searches_;
  phase_ = Phase::kSingle;
  single_ = best_ = {};
  cost_ = 0;
  use({});
}

// The trial has ended.
void ThresholdSearch::next(double seconds) {
  switch (phase_) {
    case Phase::kSingle:
      single_ = best_ = {{}, seconds};
      return begin_class();
    case Phase::kTrying:
    case Phase::kFitted:
      tried_.push_back({cuts_, seconds});
      if (too_expensive()) return end_class();
      if (!to_try_.empty()) {
        const std::size_t cut = to_try_.back();
        to_try_.pop_back();
        return try_cut(cut);
      }
      if (const std::size_t cut = phase_ == Phase::kTrying ? fitted_cut() : 0; cut != 0) {
        phase_ = Phase::kFitted;
        return try_cut(cut);
      }
      return end_class();
    case Phase::kSingleAgain:
      single_.seconds = seconds;
      phase_ = Phase::kBestAgain;
      return use(best_.cuts);
    case Phase::kBestAgain:
      best_.seconds = seconds;
      return choose(best_.seconds < single_.seconds * (1 - settings_.worth) ? best_ : single_);
    case Phase::kSkipping:
    case Phase::kChosen:
      break;
  }
  TL_ASSERT(false && "no trial runs");
}

void ThresholdSearch::begin_class() {
  tried_.clear();
  to_try_.clear();
  const std::size_t first = after() + 1, end = urgencies_.size();
  if (first >= end) return end_class();
  std::uint64_t all = 0, here = 0;
  for (std::size_t i = after(); i < end; ++i) all += bytes_[i];
  for (std::size_t i = first; i < end; ++i) {
    here += bytes_[i - 1];
    if (2 * here < all && i + 1 < end) continue;
    to_try_.push_back(i);
    break;
  }
  for (std::uint32_t i = settings_.tried; i > 0; --i)
    to_try_.push_back(after() + std::clamp<std::size_t>((end - after()) * i / (settings_.tried + 1), 1, end - first));
  std::ranges::sort(to_try_, std::greater<>());
  to_try_.erase(std::unique(to_try_.begin(), to_try_.end()), to_try_.end());
  phase_ = Phase::kTrying;
  const std::size_t cut = to_try_.back();
  to_try_.pop_back();
  try_cut(cut);
}

// 0: no other than those that were tried.
std::size_t ThresholdSearch::fitted_cut() const {
  std::vector<Point> points{{static_cast<double>(after()), best_.seconds},
                            {static_cast<double>(urgencies_.size()), best_.seconds}};
  for (const Trial& trial : tried_) points.push_back({static_cast<double>(trial.cuts.back()), trial.seconds});
  std::ranges::sort(points, {}, &Point::cut);
  const auto lowest = std::ranges::min_element(points, {}, &Point::seconds);
  if (lowest == points.begin() || lowest + 1 == points.end()) return 0;
  const auto cut = static_cast<std::size_t>(std::lround(least_of_parabola(lowest[-1], lowest[0], lowest[1])));
  const bool known = std::ranges::count(points, static_cast<double>(cut), &Point::cut) > 0;
  return known ? 0 : cut;
}

void ThresholdSearch::end_class() {
  const auto best = std::ranges::min_element(tried_, {}, &Trial::seconds);
  const bool better = best != tried_.end() && best->seconds < best_.seconds * (1 - settings_.worth);
  if (better) best_ = *best;
  if (better && best_.cuts.size() + 1 < settings_.most_classes && after() + 1 < urgencies_.size() && !too_expensive())
    return begin_class();
  if (best_.cuts.empty()) return choose(single_);
  if (too_expensive()) return choose(best_);
  phase_ = Phase::kSingleAgain;
  use({});
}

void ThresholdSearch::try_cut(std::size_t cut) {
  std::vector<std::size_t> cuts = best_.cuts;
  cuts.push_back(cut);
  use(cuts);
}

void ThresholdSearch::choose(const Trial& trial) {
  const Trial chosen = trial;
  best_ = chosen;
  phase_ = Phase::kChosen;
  use(chosen.cuts);
}

// From the next iteration on.
void ThresholdSearch::use(const std::vector<std::size_t>& cuts) {
  cuts_ = cuts;
  thresholds_.clear();
  for (const std::size_t cut : cuts_) thresholds_.push_back((urgencies_[cut - 1] + urgencies_[cut]) / 2);
  iteration_ = 0;
  sum_ = 0;
}

}  // namespace tensorlane::engine
