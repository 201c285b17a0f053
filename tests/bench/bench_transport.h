// The transports that benchmarks can be told to use: tcp, and rdma where this build has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"

namespace tensorlane::bench {

struct TransportOptions {
  std::string name = "tcp";
  std::string address;     // rdma: of the device, for both hosts
  std::uint16_t pair = 0;  // of hosts in this process
};

std::vector<std::string> transports();
// Where host `index` of the pair listens.
std::string address_of(const TransportOptions& options, std::uint16_t index, RailIndex rail);
std::uint16_t port_of(const TransportOptions& options, std::uint16_t index);
// Of control and one data class. Errors: those of the transport.
Result<std::unique_ptr<ports::Transport>> make_transport(const TransportOptions& options, std::uint16_t index,
                                                         RailIndex rail, Bytes window, ports::FlowOwner& owner);

}  // namespace tensorlane::bench
