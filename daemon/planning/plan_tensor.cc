#include "daemon/planning/plan_tensor.h"

#include <algorithm>

#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/classify/thresholds.h"
#include "daemon/engine/urgency/layer_order.h"

namespace tensorlane::planning {
namespace {

float urgency_of(UrgencyChoices& choices, const protocol::TensorBody& body, const PlannedJob& job) {
  if (body.explicit_urgency == protocol::kUnsaidUrgency) return choices.choose(job, body);
  return body.explicit_urgency != 0 ? body.urgency : engine::layer_order(body.position, body.positions);
}

}  // namespace

protocol::PlanTensor plan_tensor(const config::DaemonConfig& config, Choices& choices, const protocol::TensorBody& body,
                                 const ports::JobSpec& job) {
  const auto hosts = static_cast<std::uint16_t>(job.hosts.size());
  const PlannedJob planned(job.name, job.credentials.job);
  protocol::PlanTensor tensor;
  tensor.operation = body.operation;
  tensor.reduce = body.reduce;
  tensor.dtype = body.dtype;
  tensor.elements = std::max<std::uint64_t>(body.elements, 1);  // a barrier's clients bring none
  tensor.urgency = urgency_of(choices.urgencies, body, planned);
  tensor.cls =
      config.priorities ? engine::class_by_thresholds(config.fabric.classes.thresholds, tensor.urgency) : ClassId(0);
  tensor.fp32_contributions =
      dtype_size(body.dtype) == 2 &&
      std::ranges::any_of(job.hosts, [](const ports::JobHost& host) { return host.ranks.size() > 1; });
  tensor.slice_elements = config.slice_elements != 0
                              ? config.slice_elements
                              : engine::default_slice_elements(body.dtype, config.fabric.slowest_link());
  tensor.pattern = choices.patterns.choose(planned, tensor, body.pattern, hosts);
  tensor.slice_elements =
      engine::fit_slice_elements(tensor.slice_elements, tensor, hosts, config.data_classes(), config.staging);
  return tensor;
}

}  // namespace tensorlane::planning
