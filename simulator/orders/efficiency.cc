#include "simulator/orders/efficiency.h"

#include <algorithm>
#include <vector>

namespace tensorlane::orders {

MakespanBounds makespan_bounds(const Graph& graph) {
  MakespanBounds bounds;
  std::vector<Duration> busy(graph.resources().size());
  for (const Operation op : graph.topological()) {
    bounds.upper += graph.time(op);
    busy[graph.resource(op).value] += graph.time(op);
  }
  for (const Duration time : busy) bounds.lower = std::max(bounds.lower, time);
  return bounds;
}

double schedule_efficiency(const MakespanBounds& bounds, Duration makespan) {
  if (bounds.upper == bounds.lower) return 1;
  return to_seconds(bounds.upper - makespan) / to_seconds(bounds.upper - bounds.lower);
}

double speedup(const MakespanBounds& bounds) {
  if (bounds.lower == Duration(0)) return 0;
  return to_seconds(bounds.upper - bounds.lower) / to_seconds(bounds.lower);
}

}  // namespace tensorlane::orders
