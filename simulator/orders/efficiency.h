// What an order of transfers is worth: TicTac, section 3.2. Every function here is pure and may be called from any
// thread.
#pragma once

#include "common/base/units.h"
#include "simulator/orders/graph.h"

namespace tensorlane::orders {

// Between which any schedule's makespan lies that leaves no resource idle without need. They ignore dependencies, so
// that neither may be reachable.
struct MakespanBounds {
  Duration upper;  // UMakespan: one operation at a time (equation 1)
  Duration lower;  // LMakespan: the busiest resource, always busy (equation 2)
};

MakespanBounds makespan_bounds(const Graph& graph);

// E (TicTac, equation 3): 1 is a perfect order, 0 the worst one. Negative where resources idled together. 1 where the
// bounds are equal: no order is better than another then.
double schedule_efficiency(const MakespanBounds& bounds, Duration makespan);

// S (TicTac, equation 4): how much more work a perfect order does in the time of the worst one; 0: no order gains
// anything, 1: twice as much. 0 for a graph that takes no time.
double speedup(const MakespanBounds& bounds);

}  // namespace tensorlane::orders
