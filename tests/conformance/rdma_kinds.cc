#include "rdma_kinds.h"

#include <cstdio>
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

namespace {

// "0: rxe0: pd 1 cq 6 qp 1 cm_id 0 mr 0 ctx 1 srq 0", of all devices.
std::string rdma_objects() {
  std::string text;
  std::FILE* command = ::popen("rdma resource show", "r");
  for (int c = 0; command != nullptr && (c = std::fgetc(command)) != EOF;) {
    if (c != '\n') text += static_cast<char>(c);
  }
  const bool good = command != nullptr && ::pclose(command) == 0 && text.find(" qp ") != std::string::npos;
  return good ? text : "`rdma resource show` does not work: " + text;
}

}  // namespace

TransportKind rdma_kind(const std::string& name, std::uint8_t queue_pairs, rdma::ConnectBy connect_by,
                        const std::string& listen_address) {
  TransportKind kind;
  kind.name = name;
  kind.address = rdma_address();
  kind.pcp = false;
  kind.sockets = false;
  kind.largest = mib(16);
  // Emulated, each takes 15 to 30 ms for each queue pair; one that leaks shows at 268 KiB a cycle.
  kind.cycles = queue_pairs == 1 ? 200 : 60;
  kind.absent = rdma_absent();
  kind.objects = rdma_objects;
  kind.make = [queue_pairs, connect_by, listen_address](const HostOptions& options, std::uint16_t data_port,
                                                        ports::FlowOwner& owner) {
    rdma::RdmaConfig config = rdma_config(options, data_port);
    config.queue_pairs = queue_pairs;
    config.connect_by = connect_by;
    if (!listen_address.empty()) config.listen_address = listen_address;
    return rdma::make_rdma_transport(config, owner);
  };
  return kind;
}

std::vector<TransportKind> kinds_under_test() {
  return {rdma_kind("rdma", 1), rdma_kind("rdma_three_pairs", 3), rdma_kind("rdma_cm", 2, rdma::ConnectBy::kCm)};
}

}  // namespace tensorlane::conformance
