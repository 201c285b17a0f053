// The suite of all transports over real ports: packet sockets of the kernel's, whose cables end at a bridge.
#include <gtest/gtest.h>

#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/ethdev_port.h"
#include "network.h"
#include "tests/conformance/dpdk_setup.h"

namespace tensorlane::conformance {
namespace {

// More than a test has hosts at once.
constexpr int kEnds = 8;

// DPDK ends before the process does.
class EalEnd : public ::testing::Environment {
 public:
  void TearDown() override { dpdk::end_eal(); }
};
::testing::Environment* const eal_end = ::testing::AddGlobalTestEnvironment(new EalEnd);

// A port at the first cable that has none. A host that starts again has its old one, with its addresses.
Result<std::unique_ptr<dpdk::PacketPort>> open_free_port(dpdk::PortConfig config, bool v6) {
  TL_RETURN_IF_ERROR(dpdk::start_eal({{"--no-huge", "-m", "512", "--no-pci"}}));
  Status last;
  for (int end = 1; end <= kEnds; ++end) {
    const std::string number = std::to_string(end);
    config.device = "net_af_packet" + number + ",iface=tlend" + number;
    const auto address = dpdk::parse_ip((v6 ? "fd09::" : "10.9.0.") + number);
    config.addresses = {{*address, static_cast<std::uint8_t>(v6 ? 64 : 24), std::nullopt}};
    auto port = dpdk::open_port(config);
    if (port.ok() || port.status().code() != Code::kAlreadyExists) return port;
    last = port.status();
  }
  return last;
}

TransportKind af_packet_kind(const std::string& name, bool v6, DataProtection level) {
  TransportKind kind = tcp_ipv4();
  kind.name = name;
  kind.sockets = false;
  kind.told_by_peer = true;
  kind.wakes_by_time = true;
  kind.largest = mib(64);
  kind.cycles = 200;
  kind.absent = dpdk::testing::make_bridge(kEnds);
  kind.make = [=](const HostOptions& options, std::uint16_t data_port,
                  ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
    DpdkSetup setup = dpdk_setup(options, data_port, level);
    setup.port.receive_packets = 512;
    TL_ASSIGN_OR_RETURN(auto opened, open_free_port(setup.port, v6));
    return dpdk::make_dpdk_transport(setup.transport, std::move(opened), owner);
  };
  return kind;
}

}  // namespace

std::vector<TransportKind> kinds_under_test() {
  return {af_packet_kind("af_packet_ipv4", false, DataProtection::kNone),
          af_packet_kind("af_packet_ipv6_encrypt", true, DataProtection::kEncrypt)};
}

}  // namespace tensorlane::conformance
