#include "dpdk_kinds.h"
#include "daemon/transport/dpdk/dpdk_transport.h"
#include "daemon/transport/dpdk/port_report.h"

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
    dpdk::PortConfig port;
    port.device = "network";
    port.addresses = {{.address = next_address(v6), .prefix = 8}};
    port.udp_port = 7109;
    port.vlan = 0;
    dpdk::DpdkConfig config;
    config.listen_address = "127.0.0.1";
    config.data_port = data_port;
    config.payload_crc = options.payload_crc;
    config.protection = level;
    config.ciphers = options.ciphers;
    for (const ClassSetup& c : options.classes) {
      port.queues.push_back({c.tag.dscp, c.tag.pcp});
      config.classes.push_back({c.tag, c.window});
    }
    auto made = make_network_port(port, faults);
    if (metrics != nullptr) config.metrics = metrics->emplace_back(dpdk::make_port_metrics(*made));
    return dpdk::make_dpdk_transport(config, std::move(made), owner);
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
