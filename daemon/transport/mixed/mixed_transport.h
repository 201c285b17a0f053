// Several transports behind one face: the flows to a peer go over the best one that the two hosts share.
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
  std::function<Result<std::unique_ptr<ports::Transport>>(ports::FlowOwner&)> make;
  // Whether the fabric file offers a peer at this address over it; else why not.
  std::function<Status(const std::string& address)> offers;
};

struct MixedConfig {
  std::vector<MemberConfig> members;  // the most capable first; 1 to kMaxCandidates
  // Of all members: control and data. Members are measured in the least urgent one, so that it disturbs nobody.
  std::vector<ClassId> classes;
};

// The host that connects chooses for all flows of a job to a peer: where the fabric file offers several members, each
// is measured (prober.h) and the fastest is taken (choice.h), unless figures of the last five minutes are known. Where
// the chosen one comes to nothing for a flow in a third of the time it has, that flow tries the next one. The host that
// accepts takes what comes, so the ends never disagree. Every call belongs to the thread that owns it. Errors: those of
// the members' make().
Result<std::unique_ptr<ports::Transport>> make_mixed_transport(MixedConfig config, ports::FlowOwner& owner);

}  // namespace tensorlane::mixed
