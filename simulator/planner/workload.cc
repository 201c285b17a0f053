#include "simulator/planner/workload.h"

#include <algorithm>

#include "common/base/assert.h"
#include "daemon/engine/classify/thresholds.h"
#include "daemon/engine/urgency/layer_order.h"

namespace tensorlane::simulator {

using protocol::PlanTensor;

Duration Workload::forward() const {
  Duration sum;
  for (const Layer& layer : layers) sum += layer.forward;
  return sum;
}

Duration Workload::compute() const {
  Duration sum = forward();
  for (const Layer& layer : layers) sum += layer.backward;
  return sum;
}

std::uint64_t Workload::elements() const {
  std::uint64_t sum = 0;
  for (const Layer& layer : layers) {
    for (const Variable& variable : layer.variables) sum += variable.elements;
  }
  return sum;
}

std::uint64_t Workload::largest() const {
  std::uint64_t most = 0;
  for (const Layer& layer : layers) {
    for (const Variable& variable : layer.variables) most = std::max(most, variable.elements);
  }
  return most;
}

double urgency_of(const Workload& workload, std::size_t layer) {
  return engine::layer_order(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(workload.layers.size()));
}

namespace {

TensorId append(protocol::Plan* plan, PlanTensor tensor) {
  tensor.id = TensorId(static_cast<std::uint32_t>(plan->tensors.size()));
  plan->tensors.push_back(std::move(tensor));
  return plan->tensors.back().id;
}

// Where the variable's first shard, or all of it, is kept: servers in turn.
HostIndex first_owner(const Placement& placement, std::uint16_t hosts, std::size_t index) {
  if (placement.servers.empty()) return HostIndex(static_cast<std::uint16_t>(index % hosts));
  return placement.servers[index % placement.servers.size()];
}

// The variables that travel together, as layers and elements of each batch, in the order of the forward pass. Batches
// are filled from the last layer on: gradients come to be in that order.
struct Fused {
  std::size_t first_layer = 0, last_layer = 0;
  std::uint64_t elements = 0;
  std::string name;
};
std::vector<Fused> fuse(const Workload& workload, Bytes batch) {
  const std::uint64_t most = batch.value / sizeof(float);
  std::vector<Fused> result;
  for (std::size_t l = workload.layers.size(); l-- > 0;) {
    const std::vector<Variable>& variables = workload.layers[l].variables;
    for (auto v = variables.rbegin(); v != variables.rend(); ++v) {
      if (!result.empty() && result.back().elements + v->elements <= most) {
        result.back().first_layer = l;
        result.back().elements += v->elements;
      } else {
        result.push_back({l, l, v->elements, v->name});
      }
    }
  }
  std::ranges::reverse(result);
  return result;
}

}  // namespace

JobPlan plan_of(const Workload& workload, const Placement& placement, std::uint16_t hosts) {
  JobPlan job;
  job.plan.version = 1;
  for (const Fused& fused : fuse(workload, placement.batch)) {
    const double urgency = urgency_of(workload, fused.first_layer);
    PlanTensor t;
    t.urgency = static_cast<float>(urgency);
    t.cls = engine::class_by_thresholds(placement.thresholds, urgency);
    t.elements = fused.elements;
    t.slice_elements = placement.slice_elements;
    t.root = first_owner(placement, hosts, job.exchanged.size());
    t.name = fused.name;
    t.operation = Operation::kAllreduce;
    t.pattern =
        placement.pattern ? *placement.pattern : engine::compare_patterns(placement.costs, t, hosts).front().pattern;
    Exchanged exchanged{.first_layer = fused.first_layer, .last_layer = fused.last_layer};
    if (placement.exchange == Exchange::kPushPull) {
      t.operation = Operation::kPush;
      exchanged.push = append(&job.plan, t);
      t.operation = Operation::kPull;
      exchanged.pull = append(&job.plan, t);
    } else {
      exchanged.push = exchanged.pull = append(&job.plan, t);
    }
    job.exchanged.push_back(exchanged);
  }
  if (placement.exchange != Exchange::kPushPull) return job;  // nothing waits for all hosts
  PlanTensor barrier;
  barrier.operation = Operation::kBarrier;
  barrier.pattern = protocol::Pattern::kParameterServer;
  barrier.urgency = 1;
  barrier.name = "iteration";
  job.barrier = append(&job.plan, barrier);
  return job;
}

}  // namespace tensorlane::simulator
