// A host's place in the two trees of a slice: contributions flow up to the owner and are summed on the way, the result
// flows down. Pure arithmetic, no I/O: the engine, the simulator and the tests use the same functions. A pattern is a
// header with NAME_route() and NAME_is_leaf(), and lines in route.cc; CONTRIBUTING.md lists the other steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// The contributions of `shards` shards that a host receives in the steps of halving-doubling or of a binomial tree, in
// each of which half of the hosts are done. Exact for one shard (one in each step) and for one of each host (half of
// them, then half of the rest). Between them, a quarter of the way from the steps in which shards halve, too, to those
// in which some host has a part in all: which is where the simulator's times are for 2 and 8 shards on 64 hosts.
constexpr double halved_steps(std::uint16_t hosts, std::uint16_t shards) {
  std::uint32_t apart = 0, together = 0, shards_left = shards - 1u;
  for (std::uint32_t left = hosts - 1u; left > 0; left /= 2, shards_left /= 2) {
    apart += std::max(1u, (shards_left + 1) / 2);
    together += std::min<std::uint32_t>(shards, (left + 1) / 2);
  }
  return 0.75 * apart + 0.25 * together;
}

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

// How many contributions of `shards` shards, owned by as many hosts, the busiest host receives, or waits for one after
// the other, and sends as many results. Exact for one shard and for one of each host.
double most_received(protocol::Pattern pattern, std::uint16_t hosts, std::uint16_t shards);

// Whether some host sends on a sum that is not complete.
bool passes_partial_sums(protocol::Pattern pattern, std::uint16_t hosts);

}  // namespace tensorlane::engine
