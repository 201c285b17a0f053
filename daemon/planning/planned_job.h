// Whose tensors are planned.
#pragma once

#include <algorithm>
#include <compare>
#include <map>
#include <string>
#include <utility>

#include "common/base/units.h"

namespace tensorlane::planning {

// Jobs of one name, perhaps of several users, are told apart by their ids.
struct PlannedJob {
  std::string name;
  JobId id;
  PlannedJob(std::string job, JobId number = {})
      : name(std::move(job)), id(number) {}                      // NOLINT(google-explicit-constructor)
  PlannedJob(const char* job) : PlannedJob(std::string(job)) {}  // NOLINT(google-explicit-constructor)
  auto operator<=>(const PlannedJob&) const = default;
};

// What is kept of all jobs of a name goes.
template <typename Kept>
void forget_name(std::map<PlannedJob, Kept>& kept, const std::string& name) {
  std::erase_if(kept, [&](const auto& one) { return one.first.name == name; });
}

}  // namespace tensorlane::planning
