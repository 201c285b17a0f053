// Which way the packets of a flow take, and how they are marked on arrival at each hop: the same flow again with a time
// to live of 1, 2, ..., so that each hop in turn says that it is over, and quotes the header as it came.
//
// With CAP_NET_RAW the quoted header is read. Without it the kernel's error queue still says which address answered,
// and nothing of the marks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/probe/exchange.h"
#include "common/probe/prober.h"

namespace tensorlane::probe {

struct HopSeen {
  std::uint32_t id = 0;  // of the flow
  std::uint8_t distance = 0;
  std::string address;           // empty: the hop did not answer
  std::uint8_t dscp = kUnknown;  // as it arrived there
};

// Sockets that hear ICMP. Opening needs CAP_NET_RAW; reading does not.
class IcmpSockets {
 public:
  // 0, or errno of the first that cannot be made.
  int open();
  bool is_open() const { return ipv4_.valid() && ipv6_.valid(); }
  int fd(bool ipv6) const { return ipv6 ? ipv6_.fd() : ipv4_.fd(); }

 private:
  Socket ipv4_, ipv6_;
};

struct SweepOptions {
  int answer_ms = 350;      // how long one packet waits for its answer
  int hop_ms = 3600;        // how long a hop is asked again: routers answer about once a second to one host
  std::size_t at_once = 4;  // flows; each has one packet on its way at most
  int deadline_ms = 20000;  // of all
};

// Every flow has its source port, and `hops`. Calls `tell` for each hop of each flow that the deadline leaves time for.
void sweep(const std::vector<FlowSpec>& flows, const SweepOptions& options, const IcmpSockets& icmp,
           const std::function<void(const HopSeen&)>& tell);

}  // namespace tensorlane::probe
