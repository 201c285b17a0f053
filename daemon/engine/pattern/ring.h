// Ring: reduce-scatter and allgather around one ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms",
// 2009; the pattern of Horovod). Each shard walks its own chain, so that every host sends and receives 2 (N-1)/N of the
// bytes.
//   contributions: owner+1 -> owner+2 -> ... -> owner, each adds its own to what comes in
//   result:        owner -> owner+1 -> ... -> owner-1
#pragma once

#include "daemon/engine/pattern/route.h"

namespace tensorlane::engine {

inline HostIndex ring_next(std::uint16_t hosts, HostIndex host) {
  return HostIndex(static_cast<std::uint16_t>(host.value + 1 == hosts ? 0 : host.value + 1));
}

inline HostIndex ring_previous(std::uint16_t hosts, HostIndex host) {
  return HostIndex(static_cast<std::uint16_t>(host.value == 0 ? hosts - 1 : host.value - 1));
}

inline bool ring_is_leaf(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  return host != owner && host == ring_next(hosts, owner);
}

inline Route ring_route(std::uint16_t hosts, HostIndex owner, HostIndex me) {
  Route r;
  if (hosts == 1) {
    r.sum_order = {me};
    return r;
  }
  const HostIndex previous = ring_previous(hosts, me), next = ring_next(hosts, me);
  if (!ring_is_leaf(hosts, owner, me)) r.sum_order.push_back(previous);
  r.sum_order.push_back(me);
  if (me != owner) {
    r.contribution_to = next;
    r.result_from = previous;
  }
  if (next != owner) r.result_to.push_back(next);
  return r;
}

}  // namespace tensorlane::engine
