// Hosts of this machine that reach each other through its RDMA device (Soft-RoCE in a virtual machine, or a card).
#pragma once

#include <cstdint>

#include "daemon/transport/rdma/rdma_transport.h"
#include "harness.h"

namespace tensorlane::conformance {

// The address of this machine's RDMA device: TENSORLANE_RDMA_ADDRESS. Empty: there is none to test with.
std::string rdma_address();
// Why RDMA cannot be tested here; empty when it can.
std::string rdma_absent();
rdma::RdmaConfig rdma_config(const HostOptions& options, std::uint16_t data_port);
// Listens at `listen_address`, or, where that is empty, at rdma_address().
TransportKind rdma_kind(const std::string& name, std::uint8_t queue_pairs,
                        rdma::ConnectBy connect_by = rdma::ConnectBy::kVerbs, const std::string& listen_address = "");

}  // namespace tensorlane::conformance
