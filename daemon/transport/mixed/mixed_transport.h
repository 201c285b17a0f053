// Several transports behind one face: each flow goes over the best one that its two hosts share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"

namespace tensorlane::mixed {

struct MemberConfig {
  std::string name;               // "rdma"
  std::uint16_t port_offset = 0;  // of its ports, from a host's data_port
  std::function<Result<std::unique_ptr<ports::Transport>>(ports::FrameSink&)> make;
  // Whether the fabric file offers a peer at this address over it; else why not.
  std::function<Status(const std::string& address)> offers;
};

struct MixedConfig {
  std::vector<MemberConfig> members;  // best first; at least one
  // Told what was chosen for the peer at `address`, and why. On the lane's thread, once for every flow that connects.
  std::function<void(const std::string& address, const std::string& member, const std::string& reason)> chosen;
};

// The host that connects tries the first member that offers the peer; where that comes to nothing in a third of the
// time it has, it tries the next. The host that accepts takes what comes. Every call belongs to the thread that owns
// it. Errors: those of the members' make().
Result<std::unique_ptr<ports::Transport>> make_mixed_transport(MixedConfig config, ports::FrameSink& sink);

}  // namespace tensorlane::mixed
