// Which pattern a job's leader plans for each tensor, and what is said about it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "common/json/json.h"
#include "common/protocol/plan.h"
#include "daemon/config/config.h"
#include "daemon/engine/pattern/selector.h"
#include "daemon/planning/planned_job.h"

namespace tensorlane::planning {

// One thread, control's. `config` outlives it.
class PatternChoices {
 public:
  explicit PatternChoices(const config::DaemonConfig& config) : config_(config) {}

  // The pattern of one tensor on `hosts` hosts: what the client asked for (TensorBody::pattern, which has been
  // checked), else what daemon.yaml says. Where that is `auto`, by the cost model; the first of each kind of tensor is
  // logged. `tensor` has all that shapes a prediction but the pattern, and the slice length that is wanted.
  protocol::Pattern choose(const PlannedJob& job, const protocol::PlanTensor& tensor, std::uint8_t asked,
                           std::uint16_t hosts);

  // Jobs of this name have ended: what was chosen for them is not reported any more.
  void forget(const std::string& name) { forget_name(chosen_, name); }

  // The size from which on a transfer of its own costs about as little as one with others (Caramel, section 4.2).
  Bytes batching_threshold() const;

  // What the model reckons with, and what it chose here as a leader, one entry for each kind of tensor:
  //   {"latency_s", "bandwidth_bits_per_second", "message_cost_s", "incast", "sum_bytes_per_second"}
  //   [{"job", "job_id", "operation", "dtype", "bytes", "hosts", "class", "tensors", "pattern", "predicted_s":
  //   {PATTERN: SECONDS}}]
  nlohmann::json model() const;
  nlohmann::json choices() const;

 private:
  // Tensors of one kind are planned alike.
  using Kind = std::tuple<Operation, Dtype, std::uint64_t, std::uint16_t, ClassId, bool, std::uint32_t>;
  using Predictions = std::array<engine::Prediction, engine::kSelectable.size()>;
  struct Chosen {
    Predictions predictions;  // the fastest first
    std::uint64_t tensors = 0;
  };
  // So many kinds are kept and reported of one job; choices beyond it are made all the same.
  static constexpr std::size_t kMostKinds = 256;

  engine::PatternCosts costs(ClassId cls) const;
  BitsPerSecond bandwidth() const;
  std::string text(const Kind& kind, const Predictions& predictions) const;
  nlohmann::json describe(const PlannedJob& job, const Kind& kind, const Chosen& chosen) const;

  const config::DaemonConfig& config_;
  std::map<PlannedJob, std::map<Kind, Chosen>> chosen_;  // by job
};

}  // namespace tensorlane::planning
