// Where the thresholds between classes lie: Geryon's search (section III-B). In the first iterations different
// thresholds are tried in turn, their iteration times are fitted, and the one of the least time is used from then on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

struct ThresholdSettings {
  std::uint8_t most_classes = 2;
  std::uint32_t skipped = 2;  // iterations before the search, in which a job still warms up
  std::uint32_t settled = 1;  // iterations of a trial that do not count: transfers of the one before run in them
  std::uint32_t counted = 2;  // iterations of a trial whose mean counts
  std::uint32_t tried = 5;    // thresholds of each further class, evenly over what is less urgent than the one before
  double worth = 0.01;        // the share of an iteration that a further class must gain
  double bound = 0.05;        // trials may cost this share of `per` iterations, and one iteration more
  std::uint32_t per = 100;    // iterations; a new search begins no sooner after the last
  double drift = 0.2;         // the iteration time has moved by this share: search again
};

// What can be urgent: a tensor, or all of one urgency.
struct Weighted {
  double urgency = 0;
  Bytes size;
};

// The search of one job. Whoever leads the job feeds it with the time of every iteration and uses thresholds() for the
// next one. A function of what it is fed. One thread; not for the data path.
//
// The first trial is a single class. Then, class by class, `tried` thresholds and the one that halves the bytes are
// tried. Through the best of them and its neighbours, or the time without the class at the ends, goes a parabola, and
// where that is least is tried, too. The best is kept if it is worth it, and the next class begins behind it. In the
// end a single class and the best are tried once more, and these times decide: the best of many trials may only have
// been lucky. A trial ends at its first counted iteration if that is a quarter slower than a single class. When trials
// have cost `bound`, what is best so far stays.
class ThresholdSearch {
 public:
  ThresholdSearch(std::span<const Weighted> tensors, const ThresholdSettings& settings = {});

  // K - 1 descending thresholds for K classes (class_by_thresholds); none: a single class.
  const std::vector<double>& thresholds() const { return thresholds_; }
  // An iteration that ran with thresholds() took `seconds` (> 0). True: thresholds() has changed.
  bool observe(double seconds);

  bool searching() const { return phase_ != Phase::kChosen; }
  // For metrics. Of the last search: what its trials took more than as many iterations of a single class, in seconds;
  // the time of a single class; and of what was chosen.
  double cost_s() const { return cost_; }
  double single_class_s() const { return single_.seconds; }
  double chosen_s() const { return best_.seconds; }
  std::uint32_t searches() const { return searches_; }

 private:
  enum class Phase : std::uint8_t { kSkipping, kSingle, kTrying, kFitted, kSingleAgain, kBestAgain, kChosen };
  struct Trial {
    std::vector<std::size_t> cuts;
    double seconds = 0;
  };

  void begin_search();
  void next(double seconds);
  void begin_class();
  void end_class();
  void try_cut(std::size_t cut);
  void use(const std::vector<std::size_t>& cuts);
  void choose(const Trial& trial);
  bool too_expensive() const { return cost_ > settings_.bound * settings_.per * single_.seconds; }
  std::size_t fitted_cut() const;
  std::size_t after() const { return best_.cuts.empty() ? 0 : best_.cuts.back(); }

  const ThresholdSettings settings_;
  std::vector<double> urgencies_;  // distinct, descending; cut i lies before the i-th
  std::vector<std::uint64_t> bytes_;
  std::vector<double> thresholds_;
  Phase phase_ = Phase::kSkipping;
  std::vector<std::size_t> cuts_, to_try_;
  std::vector<Trial> tried_;  // of this class
  Trial single_, best_;
  std::uint32_t iteration_ = 0;  // of this trial, or since the choice
  double sum_ = 0, cost_ = 0;
  std::uint32_t searches_ = 0;
};

}  // namespace tensorlane::engine
