// What the links of a host have carried, as far as it can be known: by the NIC's counts and by the daemon's payload.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "monitor/explain/report.h"

namespace tensorlane::explain {

inline constexpr double kWire = 1.08;  // bytes on the wire for one of payload, about

// One direction of a NIC, and of all rails on it.
struct LinkTimes {
  std::string nic;
  std::vector<std::size_t> rails;  // by HostTimes::rails
  double speed = 0;                // bits/s, of the fabric file
  double bytes = 0;    // on the wire: what the NIC has counted, or what the daemon's payload makes where that is more
  double payload = 0;  // of all jobs of the daemon
  bool bypassed = false;  // the NIC has not counted the payload (RDMA, DPDK): what others send there is not seen
};

// Those of which the speed is known, and what they carry. Payload that goes over shared memory is on no link.
std::vector<LinkTimes> links_of(const HostTimes& host, bool sends);
// Of the link's speed.
double use_of(const LinkTimes& link, const HostTimes& host);
// The one that this rail is on; null: what it carries is not known.
const LinkTimes* find_link(const std::vector<LinkTimes>& links, std::size_t rail);

}  // namespace tensorlane::explain
