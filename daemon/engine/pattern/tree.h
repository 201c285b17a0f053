// Binomial tree: log2(N) steps, in each of which the hosts that have something to pass on double (Horovod and MPI use
// it for small payloads). Counted from the owner, host v is a child of v without its lowest bit.
#pragma once

#include "daemon/engine/pattern/route.h"

namespace tensorlane::engine {

inline unsigned tree_place(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  return host.value >= owner.value ? host.value - owner.value : host.value + hosts - owner.value;
}

// The distances from a place to its children are the powers of two below this.
inline unsigned tree_reach(std::uint16_t hosts, unsigned place) {
  return place == 0 ? hosts : place & (~place + 1);
}

inline bool tree_is_leaf(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  const unsigned place = tree_place(hosts, owner, host);
  return place != 0 && (tree_reach(hosts, place) == 1 || place + 1 >= hosts);
}

inline Route tree_route(std::uint16_t hosts, HostIndex owner, HostIndex me) {
  const auto host_at = [&](unsigned place) {
    return HostIndex(static_cast<std::uint16_t>((owner.value + place) % hosts));
  };
  const unsigned place = tree_place(hosts, owner, me);
  Route r;
  r.sum_order = {me};
  const unsigned reach = tree_reach(hosts, place);
  for (unsigned distance = 1; distance < reach && place + distance < hosts; distance *= 2)
    r.sum_order.push_back(host_at(place + distance));
  // Results: the largest subtree first.
  r.result_to.assign(r.sum_order.rbegin(), r.sum_order.rend() - 1);
  if (place != 0) r.contribution_to = r.result_from = host_at(place & (place - 1));
  return r;
}

}  // namespace tensorlane::engine
