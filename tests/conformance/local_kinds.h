// Hosts of this machine that reach each other through shared memory.
#pragma once

#include <string>

#include "harness.h"

namespace tensorlane::conformance {

// Where the hosts of this process have their sockets; goes with it.
const std::string& socket_folder();

TransportKind local_kind(const std::string& name, bool read_peer_memory);

}  // namespace tensorlane::conformance
