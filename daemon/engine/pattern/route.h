// A host's place in the two trees of a slice: contributions flow up to the owner and are summed on the way, the result
// flows down. Pure arithmetic, no I/O: the engine, the simulator and the tests use the same functions. A further
// pattern is a further header with the same two functions, and a line in route.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

struct Route {
  // The hosts whose contributions I add, in the order of summation. I am one of them, at my place. Only me: I am a leaf
  // (or alone).
  std::vector<HostIndex> sum_order;
  std::optional<HostIndex> contribution_to;  // none at the owner
  std::optional<HostIndex> result_from;      // none at the owner
  std::vector<HostIndex> result_to;
};

// The route of host `me` for data owned by `owner`, in a group of `hosts` (at least 1; owner and me are below it).
// Broadcast, allgather and pull use the result half only, push the other one.
Route route(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex me);

// Whether `host` contributes its own data only, so that it exists as soon as the host is ready. Never true for the
// owner.
bool is_leaf(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex host);

// How many other hosts' contributions any host adds at most, for any owner.
std::uint16_t most_sources(protocol::Pattern pattern, std::uint16_t hosts);

// Whether some host sends on a sum that is not complete.
bool passes_partial_sums(protocol::Pattern pattern, std::uint16_t hosts);

}  // namespace tensorlane::engine
