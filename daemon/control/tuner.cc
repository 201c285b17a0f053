#include "daemon/control/tuner.h"

#include "common/base/assert.h"

namespace tensorlane::control {

Tuner::Tuner(std::uint8_t classes) : classes_(classes) {
  TL_ASSERT(classes > 0);
}

std::optional<std::vector<double>> Tuner::iteration(const protocol::Plan& plan, Duration time) {
  if (time.value <= 0) return std::nullopt;
  if (!search_ || plan.version != version_) {
    std::vector<engine::Weighted> tensors;
    for (const protocol::PlanTensor& t : plan.tensors) {
      if (!t.vacant && reduces(t.operation) && !t.in_batch())
        tensors.push_back({t.urgency, Bytes(t.elements * dtype_size(t.dtype))});
    }
    engine::ThresholdSettings settings;
    settings.most_classes = classes_;
    const bool had_any = search_ && !search_->thresholds().empty();
    search_.emplace(tensors, settings);
    version_ = plan.version;
    if (had_any) return search_->thresholds();
    return std::nullopt;  // the iteration was one of the plan before
  }
  if (!search_->observe(to_seconds(time))) return std::nullopt;
  return search_->thresholds();
}

nlohmann::json Tuner::describe() const {
  if (!search_) return nullptr;
  return {{"thresholds", search_->thresholds()},
          {"searching", search_->searching()},
          {"searches", search_->searches()},
          {"trials_cost_s", search_->cost_s()},
          {"single_class_s", search_->single_class_s()},
          {"chosen_s", search_->chosen_s()}};
}

}  // namespace tensorlane::control
