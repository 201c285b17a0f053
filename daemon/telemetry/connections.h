// What the kernel knows of the TCP connections of this host's network namespace, asked for in one go: nothing of it is
// asked of a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::telemetry {

struct TcpConnection {
  std::string local, remote;      // "10.1.0.1:7111", "[fd00::1]:7111"
  Duration rtt, min_rtt;          // smoothed; the least of late
  std::uint64_t segments = 0;     // with data, sent
  std::uint64_t resent = 0;       // of them, again
  std::uint64_t acked_bytes = 0;  // payload that the peer has
  Duration busy;                  // with payload on its way, all together
  Duration peer_limited;          // of it, held back by the peer's window
};

// Those that are established, at most `most`. Error: kUnavailable, where the kernel does not answer.
Result<std::vector<TcpConnection>> read_tcp_connections(std::size_t most);

}  // namespace tensorlane::telemetry
