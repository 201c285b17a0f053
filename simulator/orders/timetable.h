// Plays one iteration of a graph under an order: when each operation runs, and how long the iteration takes.
#pragma once

#include <vector>

#include "simulator/orders/graph.h"
#include "simulator/orders/priorities.h"

namespace tensorlane::orders {

struct Timetable {
  std::vector<Duration> start, end;  // by operation, from the beginning of the iteration
  Duration makespan;                 // the last end
};

// The rule of TicTac, section 3.1: a resource that is free takes, among the operations that are ready for it, one of
// the lowest priority number or one without any; never an operation whose inputs are not complete, and it finishes what
// it began. The paper draws among these; here the one that stands first in the graph is taken, so that the answer is
// repeatable. A resource waits only when nothing is ready for it. `priorities` has graph.size() entries.
// In O((operations + inputs) log operations).
Timetable timetable(const Graph& graph, const Priorities& priorities);

}  // namespace tensorlane::orders
