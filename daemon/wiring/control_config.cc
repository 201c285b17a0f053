#include "daemon/wiring/control_config.h"

#include <utility>

#include "daemon/config/alike.h"
#include "daemon/planning/batches.h"
#include "daemon/planning/plan_tensor.h"

namespace tensorlane::wiring {

Bytes batch_limit(const config::DaemonConfig& config, const planning::PatternChoices& patterns) {
  return config.batch_automatic ? patterns.batching_threshold() : config.batch;
}

control::ControlConfig control_config(const config::DaemonConfig& config, planning::Choices& choices,
                                      telemetry::SpanFiles& span_files, std::function<nlohmann::json()> more_status,
                                      ports::Answerers answerers) {
  control::ControlConfig control;
  control.fabric = &config.fabric;
  control.host = config.host;
  control.secret_key = config.secret_key;
  control.detection = config.detection;
  control.join_timeout = config.join_timeout;
  control.stall_warning = config.late_after;
  control.stall_error = config.late_error;
  control.ordering = config.ordering;
  control.settings = config::must_be_alike(config);
  control.concurrent = config.ordering == protocol::Ordering::kConcurrent ? config.ordering_concurrent : 1;
  control.planner = [&config, &choices](const protocol::TensorBody& body, const ports::JobSpec& job) {
    return planning::plan_tensor(config, choices, body, job);
  };
  if (batch_limit(config, choices.patterns).value > 0) {
    control.batch_planner = [&config, &choices](const std::vector<protocol::TensorBody>& registered,
                                                const ports::JobSpec& job, std::vector<protocol::PlanTensor>* tensors) {
      const auto plan = [&](const protocol::TensorBody& body) {
        return planning::plan_tensor(config, choices, body, job);
      };
      planning::append_batches(registered, batch_limit(config, choices.patterns), plan, tensors);
    };
  }
  control.job_ended = [&choices](const std::string& name) { choices.forget(name); };
  control.job_failed = [&span_files](JobId job, Epoch epoch, const std::string& name) {
    span_files.failed(job, epoch, name);
  };
  if (config.search_thresholds && config.data_classes() > 1) control.tuned_classes = config.data_classes();
  control.more_status = std::move(more_status);
  control.answerers = std::move(answerers);
  return control;
}

}  // namespace tensorlane::wiring
