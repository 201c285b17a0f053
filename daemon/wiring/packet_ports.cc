#include "daemon/wiring/packet_ports.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "daemon/transport/dpdk/ethdev/device_string.h"
#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/eal_arguments.h"
#include "daemon/transport/dpdk/ethdev/ethdev_port.h"
#include "daemon/transport/handshake/socket.h"

namespace tensorlane::wiring {
namespace {

// An error of daemon.yaml that says where.
Status wrong(const config::DaemonConfig& config, const Status& cause, const std::string& expected) {
  const std::string what = cause.where().empty() ? cause.what() : cause.what() + ": " + cause.where();
  return {Code::kInvalidArgument, what, config.place("dpdk"), expected};
}

// "10.1.0.0/24": its bits.
Result<std::uint8_t> parse_prefix(std::string_view network) {
  const std::size_t slash = network.find('/');
  std::uint8_t bits = 0;
  const char* const end = network.data() + network.size();
  const auto [stop, error] = slash == network.npos ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                                                   : std::from_chars(network.data() + slash + 1, end, bits);
  if (error == std::errc() && stop == end && dpdk::parse_ip(network.substr(0, slash)).ok()) return bits;
  return Status(Code::kInvalidArgument, fmt::format("'{}' is no network", network));
}

Result<dpdk::LocalAddress> local_address(const config::DaemonConfig& config, RailIndex rail) {
  const config::DaemonConfig::Dpdk& dpdk = config.dpdk;
  dpdk::LocalAddress local;
  const std::string& address = *config.self().find_address("dpdk", rail);
  const auto parsed = dpdk::parse_ip(address);
  if (!parsed.ok()) {
    return Status(Code::kInvalidArgument, parsed.status().what(), config.fabric_path,
                  fmt::format("write the dpdk address of host '{}' as a number", config.host));
  }
  // The kernel would answer for it, too.
  if (const std::string interface = handshake::interface_of(address); !interface.empty()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("the dpdk address {} of host '{}' is one of its kernel's, on {}", address, config.host, interface),
        config.fabric_path, "give the port that the daemon drives itself an address of its own");
  }
  local.address = *parsed;
  if (rail.value < dpdk.networks.size()) {
    const auto prefix = parse_prefix(dpdk.networks[rail.value]);
    if (!prefix.ok()) return wrong(config, prefix.status(), "expected networks such as 10.1.0.0/24");
    local.prefix = *prefix;
  }
  if (rail.value < dpdk.gateways.size()) {
    const auto gateway = dpdk::parse_ip(dpdk.gateways[rail.value]);
    if (!gateway.ok()) return wrong(config, gateway.status(), "expected addresses in 'gateways'");
    local.gateway = *gateway;
  }
  return local;
}

Result<std::vector<dpdk::StaticNeighbour>> neighbours(const config::DaemonConfig& config) {
  std::vector<dpdk::StaticNeighbour> all;
  for (const std::string& text : config.dpdk.neighbours) {
    const std::size_t space = text.find(' ');
    const auto address = dpdk::parse_ip(std::string_view(text).substr(0, space));
    const auto mac = dpdk::parse_mac(space == text.npos ? "" : std::string_view(text).substr(space + 1));
    if (!address.ok() || !mac.ok()) {
      return wrong(config, Status(Code::kInvalidArgument, fmt::format("'{}' is no neighbour", text)),
                   "expected 'ADDRESS MAC', such as '10.1.0.3 02:00:00:00:00:03'");
    }
    all.push_back({*address, *mac});
  }
  return all;
}

// Of a class in the NIC, whose queues need not be strict: no more than one operation (law 8).
constexpr Bytes kQueueBytes = kib(256);

// The smallest MTU of the host's links, within what a port may have.
std::uint16_t mtu_of(const config::DaemonConfig& config) {
  std::uint32_t mtu = 0;
  for (const fabric::Link& link : config.fabric.links) {
    if (link.from == config.host || link.to == config.host) mtu = mtu == 0 ? link.mtu : std::min(mtu, link.mtu);
  }
  if (mtu == 0) mtu = 1500;
  return static_cast<std::uint16_t>(std::clamp<std::uint32_t>(mtu, dpdk::kMinMtu, dpdk::kMaxMtu));
}

}  // namespace

Result<dpdk::PortConfig> packet_port_config(const config::DaemonConfig& config, RailIndex rail) {
  dpdk::PortConfig port;
  port.device = config.dpdk.devices[rail.value];
  const auto device = dpdk::parse_device(port.device);
  port.interrupts = device.ok() && device->pci;  // virtual devices have none
  TL_ASSIGN_OR_RETURN(const dpdk::LocalAddress address, local_address(config, rail));
  port.addresses.push_back(address);
  port.udp_port = config.dpdk.port;
  const auto add = [&](const fabric::TrafficClass& cls) {
    port.queues.push_back({config.tags ? cls.dscp : std::uint8_t{0}, config.tags ? cls.pcp : std::uint8_t{0}});
  };
  add(config.fabric.classes.control);
  for (std::size_t c = 0; c < config.data_classes(); ++c) add(config.fabric.classes.data[c]);
  if (config.dpdk.vlan >= 0) port.vlan = static_cast<std::uint16_t>(config.dpdk.vlan);
  port.mtu = mtu_of(config);
  port.queue_packets = std::clamp<std::uint16_t>(static_cast<std::uint16_t>(kQueueBytes.value / port.mtu), 32, 256);
  TL_ASSIGN_OR_RETURN(port.neighbours, neighbours(config));
  const Status right = dpdk::check(port);
  if (!right.ok()) return wrong(config, right, right.fix());
  return port;
}

Status check_packet_ports(const config::DaemonConfig& config) {
  if (config.dpdk.devices.empty() || !config.self().addresses.contains("dpdk")) return {};
  const auto arguments = dpdk::eal_arguments(config.dpdk.eal, {.process = 1, .cpus = {0}});
  if (!arguments.ok()) return wrong(config, arguments.status(), arguments.status().fix());
  for (std::uint8_t rail = 0; rail < config.self().rails(); ++rail) {
    TL_ASSIGN_OR_RETURN([[maybe_unused]] const dpdk::PortConfig port, packet_port_config(config, RailIndex(rail)));
    const auto device = dpdk::parse_device(config.dpdk.devices[rail]);
    if (!device.ok()) return wrong(config, device.status(), device.status().fix());
  }
  return {};
}

Result<std::unique_ptr<dpdk::PacketPort>> open_packet_port(const config::DaemonConfig& config, RailIndex rail) {
  TL_ASSIGN_OR_RETURN(const dpdk::PortConfig port, packet_port_config(config, rail));
  TL_RETURN_IF_ERROR(dpdk::start_eal({.arguments = config.dpdk.eal}));
  return dpdk::open_port(port);
}

}  // namespace tensorlane::wiring
