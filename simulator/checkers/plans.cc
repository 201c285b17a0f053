#include "simulator/checkers/plans.h"

#include "daemon/engine/engine.h"
#include "simulator/clock/random.h"

namespace tensorlane::simulator {

void check_plans(const Scenario& scenario, Findings& findings) {
  if (scenario.hosts() == 1 || scenario.plan.tensors.empty()) return;
  engine::Engine engine(scenario.engine, {0, 1, 0, engine::Engine::staging_bytes(scenario.engine).value});
  if (const Status status = engine.apply_plan(scenario.plan); !status.ok())
    return findings.fail("protocol", "the plan was refused: {}", status.to_string());
  Random random(mix(scenario.seed) ^ 1);
  protocol::Plan plan = scenario.plan;
  ++plan.version;
  protocol::PlanTensor& tensor = plan.tensors[random.below(plan.tensors.size())];
  if (tensor.operation == Operation::kBarrier || random.chance(0.5)) {
    const auto other = static_cast<std::size_t>(tensor.pattern) + 1 + random.below(protocol::kPatternCount - 1);
    tensor.pattern = static_cast<protocol::Pattern>(other % protocol::kPatternCount);
  } else {
    tensor.slice_elements += 16;
  }
  if (engine.apply_plan(plan).ok())
    findings.fail("protocol", "a plan that cuts or moves tensor {} otherwise was taken", tensor.id.value);
}

}  // namespace tensorlane::simulator
