#include "dpdk_kinds.h"

#include "daemon/transport/dpdk/port_report.h"
#include "dpdk_setup.h"

namespace tensorlane::conformance {
namespace {

// Each port of this process has an address of its own.
dpdk::IpAddress next_address(bool v6) {
  static std::uint16_t number = 0;
  ++number;
  dpdk::IpAddress address{.v6 = v6};
  address.bytes[0] = v6 ? 0xfd : 10;
  address.bytes[address.size() - 2] = static_cast<std::uint8_t>(number >> 8);
  address.bytes[address.size() - 1] = static_cast<std::uint8_t>(number);
  return address;
}

}  // namespace

TransportKind dpdk_kind(const std::string& name, bool v6, DataProtection level, const NetworkFaults& faults,
                        PortMetricsList* metrics) {
  TransportKind kind = tcp_ipv4();
  kind.name = name;
  kind.sockets = false;
  kind.told_by_peer = true;
  kind.largest = faults.lost > 0 ? mib(16) : mib(128);
  kind.cycles = 1000;
  kind.make = [=](const HostOptions& options, std::uint16_t data_port, ports::FlowOwner& owner) {
    DpdkSetup setup = dpdk_setup(options, data_port, level);
    setup.port.device = "network";
    setup.port.addresses = {{.address = next_address(v6), .prefix = 8}};
    setup.port.vlan = 0;
    auto made = make_network_port(setup.port, faults);
    if (metrics != nullptr) setup.transport.metrics = metrics->emplace_back(dpdk::make_port_metrics(*made));
    return dpdk::make_dpdk_transport(setup.transport, std::move(made), owner);
  };
  return kind;
}

std::vector<TransportKind> kinds_under_test() {
  return {dpdk_kind("dpdk_ipv4", false, DataProtection::kNone), dpdk_kind("dpdk_ipv6", true, DataProtection::kNone),
          dpdk_kind("dpdk_authenticate", false, DataProtection::kAuthenticate),
          dpdk_kind("dpdk_encrypt", false, DataProtection::kEncrypt),
          dpdk_kind("dpdk_lossy", false, DataProtection::kNone, {.lost = 0.02, .overtaken = 0.05, .doubled = 0.01})};
}

}  // namespace tensorlane::conformance
