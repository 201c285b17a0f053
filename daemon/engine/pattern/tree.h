// Binomial tree: log2(N) steps, in each of which the hosts that have something to pass on double (Horovod and MPI use
// it for small payloads). Counted from the owner, a host's parent is the one without its highest bit: so the child at
// distance 1 has the most hosts behind it, then the one at 2, and a host that serves its peers in turn, beginning with
// the next one, sends the results that go furthest first.
#pragma once

#include <bit>

#include "daemon/engine/pattern/route.h"

namespace tensorlane::engine {

inline unsigned tree_place(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  return host.value >= owner.value ? host.value - owner.value : host.value + hosts - owner.value;
}

// The distances from a place to its children are the powers of two from this on, to places that there are.
inline unsigned tree_first_distance(unsigned place) {
  return place == 0 ? 1 : std::bit_floor(place) * 2;
}

inline bool tree_is_leaf(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  const unsigned place = tree_place(hosts, owner, host);
  return place != 0 && place + tree_first_distance(place) >= hosts;
}

inline Route tree_route(std::uint16_t hosts, HostIndex owner, HostIndex me) {
  const auto host_at = [&](unsigned place) {
    return HostIndex(static_cast<std::uint16_t>((owner.value + place) % hosts));
  };
  const unsigned place = tree_place(hosts, owner, me);
  Route r;
  r.sum_order = {me};
  for (unsigned distance = tree_first_distance(place); place + distance < hosts; distance *= 2)
    r.sum_order.push_back(host_at(place + distance));
  r.result_to.assign(r.sum_order.begin() + 1, r.sum_order.end());
  if (place != 0) r.contribution_to = r.result_from = host_at(place ^ std::bit_floor(place));
  return r;
}

}  // namespace tensorlane::engine
