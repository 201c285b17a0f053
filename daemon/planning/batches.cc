#include "daemon/planning/batches.h"

#include "daemon/engine/batching/plan_batches.h"

namespace tensorlane::planning {

void append_batches(const std::vector<protocol::TensorBody>& registered, Bytes most,
                    const std::function<protocol::PlanTensor(const protocol::TensorBody&)>& plan,
                    std::vector<protocol::PlanTensor>* tensors) {
  std::vector<std::uint8_t> asked;
  asked.reserve(registered.size());
  for (const protocol::TensorBody& body : registered) asked.push_back(body.pattern);
  engine::append_batches(tensors, asked, most, [&](protocol::PlanTensor& batch, std::size_t member) {
    protocol::TensorBody body = registered[member];
    body.elements = batch.elements;
    body.explicit_urgency = 1;
    body.urgency = batch.urgency;
    const protocol::PlanTensor planned = plan(body);
    batch.pattern = planned.pattern;
    batch.cls = planned.cls;
    batch.slice_elements = planned.slice_elements;
  });
}

}  // namespace tensorlane::planning
