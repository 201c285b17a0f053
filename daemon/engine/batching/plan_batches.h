// Which small allreduces of a plan travel together: Caramel's parameter batcher (section 4.2) for a leader that plans
// tensors when they are registered and does not know when each will be ready. It has the order in which they are needed
// instead, which is that in which a backward pass makes them, from its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// Decides what a batch has of its own: pattern, class and slices. Everything else is there. `member`: position of one
// of its members.
using BatchPlanner = std::function<void(protocol::PlanTensor& batch, std::size_t member)>;

// `tensors` were registered together, and are planned but for their ids and groups. Allreduces of one dtype, reduction,
// width and class, which ask for the same pattern (`asked`, by position, any number), are taken in the order of their
// urgency, of equal ones in that of registration; neighbours join a batch as long as it has at most `most` bytes. What
// finds no neighbour travels by itself. Batches are appended, as urgent as their most urgent member; PlanTensor::batch
// is a position in `tensors`. A function of its arguments; without any when `most` is 0.
void append_batches(std::vector<protocol::PlanTensor>* tensors, std::span<const std::uint8_t> asked, Bytes most,
                    const BatchPlanner& plan);

}  // namespace tensorlane::engine
