#include "daemon/planning/urgency_choices.h"

namespace tensorlane::planning {

std::string UrgencyChoices::rule_name(const fabric::UrgencyRule* rule) const {
  if (rule == nullptr) return "none";
  return rule->line == 0 ? "default" : fabric_.path + ":" + std::to_string(rule->line);
}

float UrgencyChoices::choose(const PlannedJob& job, const protocol::TensorBody& body) {
  const fabric::UrgencyRule* rule =
      fabric_.urgencies.find(job.name, body.name, body.operation, Bytes(body.elements * dtype_size(body.dtype)));
  const float urgency = rule == nullptr ? body.urgency : rule->urgency;
  auto& of_job = chosen_[job];
  const std::pair key(rule_name(rule), body.operation);
  if (of_job.size() >= kMost && !of_job.contains(key)) return urgency;
  Chosen& chosen = of_job[key];
  chosen.urgency = urgency;
  ++chosen.tensors;
  chosen.last = body.name;
  return urgency;
}

nlohmann::json UrgencyChoices::choices() const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [job, of_job] : chosen_) {
    for (const auto& [key, chosen] : of_job) {
      const auto& [rule, operation] = key;
      all.push_back({{"job", job.name},
                     {"job_id", job.id.value},
                     {"rule", rule},
                     {"operation", operation_name(operation)},
                     {"urgency", chosen.urgency},
                     {"tensors", chosen.tensors},
                     {"last", chosen.last}});
    }
  }
  return all;
}

}  // namespace tensorlane::planning
