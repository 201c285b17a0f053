// A traced iteration (client-lib/python/tensorlane/graph.schema.json) as the planner's chain of layers.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "simulator/orders/graph.h"
#include "simulator/planner/workload.h"

namespace tensorlane::simulator {

struct TracedWorkload {
  Workload workload;
  std::size_t without_gradient = 0;  // parameters that are received and never sent: nothing of them is exchanged
  Duration longest_delay;            // by which any gradient leaves later than in the graph, see below
};

// The graph is played with transfers that take no time (orders::timetable), so that what it computes in parallel stays
// parallel. Parameters that the same operation is the first to need are a layer, which has the operation's name; its
// forward pass lasts until the next layer's parameters are needed. Backward passes follow in reverse order, and a
// layer's ends when its gradients are there: one that the graph has before those of a later layer leaves with them.
// What is computed before any parameter is needed or after the last gradient is a layer "(start)" without variables.
// All layers take as long as the graph.
//
// The recv and the send of a parameter are recv/NAME and send/NAME, as tensorlane.torch.trace() calls them.
// InvalidArgument, where = `where`: other names, a send without a recv or of other bytes, a parameter that no
// operation waits for or without bytes, no gradient at all, or nothing that takes time.
Result<TracedWorkload> workload_of(const orders::Graph& graph, const std::string& where);

// The same layers, faster or slower by one factor: their iteration computes for so long. `workload` takes some time.
Workload scaled_to(const Workload& workload, Duration compute);

}  // namespace tensorlane::simulator
