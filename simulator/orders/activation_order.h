// In which order the gradients of an iteration should become ready, and how to make every worker follow it (Caramel,
// section 4.1).
#pragma once

#include <span>
#include <vector>

#include "simulator/orders/graph.h"
#include "simulator/orders/priorities.h"

namespace tensorlane::orders {

// Stage 1, "Determining the best order": again and again the send operation for which the compute operations that it
// waits for, and that none chosen before waits for, take the least time; if equal the one that waits for fewer of them,
// then the first in the graph. Every send operation gets its number, from 0 without gaps, no other operation has one.
// kInvalidArgument if the graph has no send operation; as Reach::build() else.
Result<Priorities> activation_order(const Graph& graph);

// Stage 2, "Enforcing the best order": dependencies that let gradients become ready in no other order, for
// graph.with(). Between what send operation i waits for directly (its end set) and the compute operations that send
// operation i + 1 needs and that could otherwise start before (its free set). `order` holds send operations; one that
// needs nothing of its own adds no dependency. Recv operations stay free: they do not compute.
// In O(operations + inputs + result).
std::vector<Dependency> enforce_activation(const Graph& graph, std::span<const Operation> order);

}  // namespace tensorlane::orders
