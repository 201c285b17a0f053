// In which order the parameters of an iteration should arrive: TicTac's two heuristics and layer order, on graphs.
#pragma once

#include "simulator/orders/graph.h"
#include "simulator/orders/priorities.h"
#include "simulator/orders/properties.h"

namespace tensorlane::orders {

// Each gives every recv operation a number, and no other operation. Errors as Properties::build().

// Timing-Independent Communication scheduling (TicTac, algorithm 2): the number is M+ where every transfer takes 1 and
// everything else nothing, so at least 2. A transfer with which no operation waits for another one (M+ is infinite) has
// the number of all recv operations + 1, which is more than any other's.
Result<Priorities> tic_order(const Graph& graph);

// Timing-Aware Communication scheduling (TicTac, algorithm 3), with the graph's own times: numbers from 0 without gaps.
Result<Priorities> tac_order(const Graph& graph);

// Geryon, section III: in the order in which the layers that need them come in the forward pass. That is the order of
// the first operations in graph.topological() that read them; what nothing reads comes last. Numbers from 0, without
// gaps. Recv operations may wait for one another.
Result<Priorities> layer_transfer_order(const Graph& graph);

// Whether TAC takes `a` before `b`, two outstanding recv operations: where one of them gives the worker more to do
// while the other arrives, that one (equation 6: min(P_b, M_a) < min(P_a, M_b)), else the one that unblocks an
// operation sooner (M+). The paper's algorithm 3 prints A < B for A = min(P_a, M_b), which is equation 6 turned round
// and takes figure 1a in the wrong order; the equation, which the paper derives, is what holds.
bool tac_before(const Properties& properties, std::uint32_t a, std::uint32_t b);

}  // namespace tensorlane::orders
