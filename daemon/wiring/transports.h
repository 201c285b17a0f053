// Which transports carry the flows of a rail, and how daemon.yaml and the fabric file configure each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/config/config.h"
#include "daemon/ports/port_metrics.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/transport.h"

namespace tensorlane::wiring {

// What a rail's flows go over.
struct RailTransport {
  std::string name;         // of several, as in "local, rdma, dpdk, tcp", to each host whichever is faster
  std::string device;       // of the NIC, for the most capable one over the network
  std::string why_no_rdma;  // empty where there is
  std::string why_no_dpdk;  // empty where there is
  bool names_dpdk = false;  // daemon.yaml has ports that the daemon drives itself, or the fabric file addresses of such
  std::shared_ptr<const ports::PortMetrics> port;  // what the rail's one does; null where there is none
};

// The transport that daemon.yaml asks for. With `auto`, RDMA, DPDK and TCP, whichever is fastest between two hosts, and
// shared memory to hosts with the same `local` address. Writes what it chose to rails[rail]. `config`, `owner` and
// `probes`, whose probes listeners of TCP answer, outlive the transport. Errors: those of the transports (a port in
// use), and that of the device where daemon.yaml insists on RDMA or DPDK.
Result<std::unique_ptr<ports::Transport>> make_transport(const config::DaemonConfig& config, RailIndex rail,
                                                         ports::FlowOwner& owner, ports::ProbeTokens* probes,
                                                         std::vector<RailTransport>& rails);

}  // namespace tensorlane::wiring
