// Priority numbers of the operations of a graph, and how the engine's urgencies follow from them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "simulator/orders/graph.h"

namespace tensorlane::orders {

// By operation: the lower the number, the earlier (TicTac, section 3.1). Several operations may have one number.
using Priorities = std::vector<std::uint32_t>;
inline constexpr std::uint32_t kNoPriority = std::numeric_limits<std::uint32_t>::max();

// The operations that have a number, lowest first; of equal ones the first in the graph. The position in this list is
// the number of transfers before it (TicTac, section 5.1: "priorities are sequentially assigned to an integer in the
// range of [0, n)"), and layer_order(position, list's size) its urgency.
std::vector<Operation> sequence_of(const Priorities& priorities);

}  // namespace tensorlane::orders
