#include "simulator/orders/transfer_order.h"

#include <algorithm>

namespace tensorlane::orders {

namespace {

std::vector<Duration> times_of(const Graph& graph) {
  std::vector<Duration> times(graph.size());
  for (const Operation op : graph.topological()) times[op.value] = graph.time(op);
  return times;
}

// TicTac, equation 5.
std::vector<Duration> general_times(const Graph& graph) {
  std::vector<Duration> times(graph.size());
  for (const Operation op : graph.of_kind(Kind::kRecv)) times[op.value] = Duration(1);
  return times;
}

}  // namespace

Result<Priorities> tic_order(const Graph& graph) {
  TL_ASSIGN_OR_RETURN(const Properties properties, Properties::build(graph, general_times(graph)));
  Priorities priorities(graph.size(), kNoPriority);
  const auto recvs = properties.recvs();
  for (std::uint32_t r = 0; r < recvs.size(); ++r) {
    const Duration impending = properties.impending_load(r);
    priorities[recvs[r].value] = impending == kNoImpending ? static_cast<std::uint32_t>(recvs.size() + 1)
                                                           : static_cast<std::uint32_t>(impending.value);
  }
  return priorities;
}

bool tac_before(const Properties& properties, std::uint32_t a, std::uint32_t b) {
  const Duration ma = properties.communication_time(properties.recvs()[a]);
  const Duration mb = properties.communication_time(properties.recvs()[b]);
  const Duration first_a = std::min(properties.direct_load(b), ma);
  const Duration first_b = std::min(properties.direct_load(a), mb);
  if (first_a != first_b) return first_a < first_b;
  return properties.impending_load(a) < properties.impending_load(b);
}

Result<Priorities> tac_order(const Graph& graph) {
  TL_ASSIGN_OR_RETURN(Properties properties, Properties::build(graph, times_of(graph)));
  Priorities priorities(graph.size(), kNoPriority);
  const auto recvs = properties.recvs();
  for (std::uint32_t number = 0; number < recvs.size(); ++number) {
    std::uint32_t best = kNoPriority;
    for (std::uint32_t r = 0; r < recvs.size(); ++r)
      if (properties.outstanding(r) && (best == kNoPriority || tac_before(properties, r, best))) best = r;
    priorities[recvs[best].value] = number;
    properties.complete(best);
  }
  return priorities;
}

Result<Priorities> layer_transfer_order(const Graph& graph) {
  std::vector<Operation> unread = graph.of_kind(Kind::kRecv);
  if (unread.empty())
    return Status(Code::kInvalidArgument, "the graph has no recv operation", "", "there is nothing to order");
  Priorities priorities(graph.size(), kNoPriority);
  std::uint32_t number = 0;
  for (const Operation reader : graph.topological()) {
    if (graph.kind(reader) != Kind::kCompute) continue;
    for (const Operation input : graph.inputs(reader))
      if (graph.kind(input) == Kind::kRecv && priorities[input.value] == kNoPriority)
        priorities[input.value] = number++;
  }
  for (const Operation recv : unread)
    if (priorities[recv.value] == kNoPriority) priorities[recv.value] = number++;
  return priorities;
}

}  // namespace tensorlane::orders
