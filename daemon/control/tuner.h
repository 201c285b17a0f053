// Lets a job's leader search for the thresholds between classes while the job trains (engine/classify).
#pragma once

#include <optional>
#include <vector>

#include "common/base/units.h"
#include "common/json/json.h"
#include "common/protocol/plan.h"
#include "daemon/engine/classify/threshold_search.h"

namespace tensorlane::control {

// One job's search. One thread.
class Tuner {
 public:
  // `classes`: data classes of the fabric, at least 1.
  explicit Tuner(std::uint8_t classes);

  // An iteration of the job has taken this long, under `plan`. Returns the thresholds that every host is to use from
  // now on, when they change. A plan that has grown begins another search.
  std::optional<std::vector<double>> iteration(const protocol::Plan& plan, Duration time);

  // For the status; null before the first iteration.
  nlohmann::json describe() const;

 private:
  const std::uint8_t classes_;
  std::uint32_t version_ = 0;  // of the plan that is searched for
  std::optional<engine::ThresholdSearch> search_;
};

}  // namespace tensorlane::control
