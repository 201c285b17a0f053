#include "rdma_kinds.h"

#include <cstdlib>

namespace tensorlane::conformance {

std::string rdma_address() {
  const char* address = std::getenv("TENSORLANE_RDMA_ADDRESS");
  return address == nullptr ? "" : address;
}

std::string rdma_absent() {
  if (rdma_address().empty())
    return "TENSORLANE_RDMA_ADDRESS names no address of an RDMA device; tests/rdma-vm has one";
  return "";
}

rdma::RdmaConfig rdma_config(const HostOptions& options, std::uint16_t data_port) {
  rdma::RdmaConfig config;
  config.listen_address = rdma_address();
  config.data_port = data_port;
  config.payload_crc = options.payload_crc;
  config.address = rdma_address();
  for (const ClassSetup& c : options.classes) config.classes.push_back({c.tag, c.window});
  return config;
}

TransportKind rdma_kind(const std::string& name, std::uint8_t queue_pairs, const std::string& listen_address) {
  TransportKind kind;
  kind.name = name;
  kind.address = rdma_address();
  kind.pcp = false;
  kind.sockets = false;
  kind.largest = mib(32);
  kind.cycles = 400;  // emulated, each takes 20 to 40 ms; a queue pair that leaks shows at 268 KiB a cycle
  kind.absent = rdma_absent();
  kind.make = [queue_pairs, listen_address](const HostOptions& options, std::uint16_t data_port,
                                            ports::FrameSink& sink) {
    rdma::RdmaConfig config = rdma_config(options, data_port);
    config.queue_pairs = queue_pairs;
    if (!listen_address.empty()) config.listen_address = listen_address;
    return rdma::make_rdma_transport(config, sink);
  };
  return kind;
}

std::vector<TransportKind> kinds_under_test() {
  return {rdma_kind("rdma", 1), rdma_kind("rdma_three_pairs", 3)};
}

}  // namespace tensorlane::conformance
