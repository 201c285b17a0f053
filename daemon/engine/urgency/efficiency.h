// What an order of transfers is worth: TicTac, section 3.2, and Caramel, section 3.1. Every function here is pure and
// may be called from any thread.
#pragma once

#include <span>

#include "common/base/units.h"
#include "common/graph/graph.h"

namespace tensorlane::engine {

// Between which any schedule's makespan lies that leaves no resource idle without need. They ignore dependencies, so
// that neither may be reachable.
struct MakespanBounds {
  Duration upper;  // UMakespan: one operation at a time (equation 1)
  Duration lower;  // LMakespan: the busiest resource, always busy (equation 2)
};

MakespanBounds makespan_bounds(const graph::Graph& graph);

// E (TicTac, equation 3): 1 is a perfect order, 0 the worst one. Negative where resources idled together. 1 where the
// bounds are equal: no order is better than another then.
double schedule_efficiency(const MakespanBounds& bounds, Duration makespan);

// S (TicTac, equation 4): how much more work a perfect order does in the time of the worst one; 0: no order gains
// anything, 1: twice as much. 0 for a graph that takes no time.
double speedup(const MakespanBounds& bounds);

// The longest time that any worker waits for the slowest one, as a share of the iteration (TicTac, section 6,
// "Straggler Effect"): in [0, 1], 0 for fewer than two workers. `finished` is how long each worker took.
double straggler_share(std::span<const Duration> finished);

// U = 1 / (1 + rho - alpha * min(rho, 1)) (Caramel, section 3.1): the share of an iteration in which the worker
// computes. `rho` is communication time over computation time, at least 0; `alpha` in [0, 1] is how much of the shorter
// of the two overlaps with the longer one.
double compute_utilization(double rho, double alpha);

}  // namespace tensorlane::engine
