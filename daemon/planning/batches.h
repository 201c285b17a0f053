// Which small tensors a job's leader plans to move together.
#pragma once

#include <functional>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "common/protocol/session.h"

namespace tensorlane::planning {

// Appends to `tensors`, which `registered` has become, the batches of at most `most` bytes that
// engine/batching/plan_batches.h makes of them. `plan` plans one tensor: a batch has the pattern, class and slices of a
// tensor of its length that asks for what its members ask for.
void append_batches(const std::vector<protocol::TensorBody>& registered, Bytes most,
                    const std::function<protocol::PlanTensor(const protocol::TensorBody&)>& plan,
                    std::vector<protocol::PlanTensor>* tensors);

}  // namespace tensorlane::planning
