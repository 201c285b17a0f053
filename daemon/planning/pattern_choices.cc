#include "daemon/planning/pattern_choices.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/protocol/session.h"

namespace tensorlane::planning {
namespace {

constexpr BitsPerSecond kUnknownBandwidth{10'000'000'000};

}  // namespace

BitsPerSecond PatternChoices::bandwidth() const {
  if (config_.network_model.bandwidth) return *config_.network_model.bandwidth;
  const std::optional<BitsPerSecond> link = config_.fabric.slowest_link();
  return link ? *link * config_.self().rails() : kUnknownBandwidth;
}

engine::PatternCosts PatternChoices::costs(ClassId cls) const {
  engine::PatternCosts costs;
  costs.network = engine::NetworkModel::of(config_.network_model.latency, bandwidth());
  costs.message = config_.network_model.message_cost;
  costs.incast = static_cast<double>(config_.network_model.incast_percent) / 100;
  costs.sum_bytes_per_second = static_cast<double>(bytes_per_second(config_.network_model.sum_rate));
  costs.window = fabric::window(config_.fabric.classes.data[cls.value], config_.fabric.link_speed(config_.self()));
  costs.staging = config_.staging;
  costs.classes = config_.data_classes();
  return costs;
}

Bytes PatternChoices::batching_threshold() const {
  return engine::NetworkModel::of(config_.network_model.latency, bandwidth()).threshold();
}

protocol::Pattern PatternChoices::choose(const PlannedJob& job, const protocol::PlanTensor& tensor, std::uint8_t asked,
                                         std::uint16_t hosts) {
  if (asked == protocol::kDaemonsPattern && config_.pattern) return *config_.pattern;
  if (asked != protocol::kDaemonsPattern && asked != protocol::kAutomaticPattern)
    return static_cast<protocol::Pattern>(asked - 1);
  // A push and its pull must be cut alike, whatever their classes.
  if (is_keyed(tensor.operation)) return protocol::Pattern::kParameterServer;
  auto& of_job = chosen_[job];
  const Kind kind(tensor.operation, tensor.dtype, tensor.elements, hosts, tensor.cls, tensor.fp32_contributions,
                  tensor.slice_elements);
  const auto known = of_job.find(kind);
  if (known != of_job.end()) {
    ++known->second.tensors;
    return known->second.predictions.front().pattern;
  }
  const Predictions predictions = engine::compare_patterns(costs(tensor.cls), tensor, hosts);
  if (of_job.size() < kMostKinds) {
    of_job.emplace(kind, Chosen{predictions, 1});
    spdlog::info("job '{}': {}", job.name, text(kind, predictions));
  }
  return predictions.front().pattern;
}

std::string PatternChoices::text(const Kind& kind, const Predictions& predictions) const {
  const auto& [operation, dtype, elements, hosts, cls, fp32, slice] = kind;
  std::string others;
  for (const engine::Prediction& p : predictions) {
    others += fmt::format("{}{} {:.1f} us", others.empty() ? "" : ", ", protocol::pattern_name(p.pattern),
                          to_seconds(p.time) * 1e6);
  }
  return fmt::format("{} of {} bytes of {} on {} hosts in class {}: pattern {} (predicted: {})",
                     operation_name(operation), elements * dtype_size(dtype), dtype_name(dtype), hosts,
                     config_.fabric.classes.data[cls.value].name, protocol::pattern_name(predictions.front().pattern),
                     others);
}

nlohmann::json PatternChoices::model() const {
  const config::DaemonConfig::NetworkModel& m = config_.network_model;
  return {{"latency_s", to_seconds(m.latency)},
          {"bandwidth_bits_per_second", bandwidth().value},
          {"message_cost_s", to_seconds(m.message_cost)},
          {"incast", static_cast<double>(m.incast_percent) / 100},
          {"sum_bytes_per_second", bytes_per_second(m.sum_rate)}};
}

nlohmann::json PatternChoices::choices() const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [job, of_job] : chosen_) {
    for (const auto& [kind, chosen] : of_job) all.push_back(describe(job, kind, chosen));
  }
  return all;
}

nlohmann::json PatternChoices::describe(const PlannedJob& job, const Kind& kind, const Chosen& chosen) const {
  const auto& [operation, dtype, elements, hosts, cls, fp32, slice] = kind;
  nlohmann::json predicted = nlohmann::json::object();
  for (const engine::Prediction& p : chosen.predictions)
    predicted[protocol::pattern_name(p.pattern)] = to_seconds(p.time);
  return {{"job", job.name},
          {"job_id", job.id.value},
          {"operation", operation_name(operation)},
          {"dtype", dtype_name(dtype)},
          {"bytes", elements * dtype_size(dtype)},
          {"hosts", hosts},
          {"class", config_.fabric.classes.data[cls.value].name},
          {"tensors", chosen.tensors},
          {"pattern", protocol::pattern_name(chosen.predictions.front().pattern)},
          {"predicted_s", std::move(predicted)}};
}

}  // namespace tensorlane::planning
