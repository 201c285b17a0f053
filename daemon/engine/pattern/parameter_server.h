// Parameter server: every host is a server and owns a shard of every tensor (Geryon, section IV). Contributions go
// straight to the owner, which sums all of them at once in host order; results go straight back.
#pragma once

#include "daemon/engine/pattern/route.h"

namespace tensorlane::engine {

inline bool parameter_server_is_leaf(HostIndex owner, HostIndex host) {
  return host != owner;
}

inline Route parameter_server_route(std::uint16_t hosts, HostIndex owner, HostIndex me) {
  Route r;
  if (me != owner) {
    r.sum_order = {me};
    r.contribution_to = r.result_from = owner;
    return r;
  }
  for (std::uint16_t h = 0; h < hosts; ++h) {
    r.sum_order.push_back(HostIndex(h));
    if (h != me.value) r.result_to.push_back(HostIndex(h));
  }
  return r;
}

}  // namespace tensorlane::engine
