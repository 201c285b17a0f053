#include "daemon/wiring/transports.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "daemon/transport/dpdk/dpdk_transport.h"
#include "daemon/transport/dpdk/port_report.h"
#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/mixed/mixed_transport.h"
#include "daemon/transport/rdma/rdma_transport.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/wiring/lane_config.h"
#include "daemon/wiring/packet_ports.h"

namespace tensorlane::wiring {
namespace {

// Handshakes of RDMA flows have ports of their own behind those of TCP.
constexpr std::uint16_t kRdmaPortOffset = 16;
// ... and those of flows over ports that the daemon drives itself.
constexpr std::uint16_t kDpdkPortOffset = 32;
// What the way to a peer and back holds, at least, and for how long it lies there.
constexpr Bytes kLeastCredit = kib(64);
constexpr Duration kCreditTime = microseconds(80);

tcp::TcpConfig tcp_config(const config::DaemonConfig& config, RailIndex rail) {
  tcp::TcpConfig tcp;
  const std::string& own = config.self().tcp_address(rail);
  const Result<std::string> numeric = fabric::resolve_address(own);
  tcp.listen_address = numeric.ok() ? *numeric : own;
  tcp.data_port = config.self().data_port;
  tcp.payload_crc = config.payload_crc;
  tcp.detection = config.detection;
  tcp.protection = config.fabric.data_protection;
  const auto add = [&](ClassId cls, const fabric::TrafficClass& c) {
    const ports::ClassTag tag = config.tags ? ports::ClassTag{cls, c.dscp, c.pcp} : ports::ClassTag{cls, 0, 0};
    tcp.classes.push_back({tag, window(config, c, rail)});
  };
  add(kControlClass, config.fabric.classes.control);
  for (std::size_t c = 0; c < config.data_classes(); ++c)
    add(ClassId(static_cast<std::uint8_t>(c)), config.fabric.classes.data[c]);
  return tcp;
}

Result<std::unique_ptr<ports::Transport>> over_tcp(const config::DaemonConfig& config, RailIndex rail,
                                                   ports::ProbeTokens* probes, ports::FlowOwner& owner) {
  tcp::TcpConfig tcp = tcp_config(config, rail);
  tcp.probes = probes;
  return tcp::make_tcp_transport(tcp, owner);
}

rdma::RdmaConfig rdma_config(const config::DaemonConfig& config, RailIndex rail) {
  rdma::RdmaConfig rdma;
  const tcp::TcpConfig tcp = tcp_config(config, rail);
  rdma.listen_address = tcp.listen_address;
  rdma.data_port = static_cast<std::uint16_t>(tcp.data_port + kRdmaPortOffset);
  rdma.payload_crc = config.payload_crc;
  rdma.address = *config.self().find_address("rdma", rail);
  rdma.device = config.rdma.device;
  rdma.port = config.rdma.port;
  rdma.gid_index = config.rdma.gid_index;
  rdma.queue_pairs = config.rdma.queue_pairs;
  rdma.connect_by = config.rdma.connect_by_cm ? rdma::ConnectBy::kCm : rdma::ConnectBy::kVerbs;
  rdma.detection = config.detection;
  rdma.retry = config.rdma.retry;
  for (const tcp::TcpClass& c : tcp.classes) {
    const fabric::TrafficClass& described =
        c.tag.cls == kControlClass ? config.fabric.classes.control : config.fabric.classes.data[c.tag.cls.value];
    rdma.classes.push_back({c.tag, c.window});
    rdma.classes.back().tag.service_level = config.tags ? described.service_level : std::uint8_t{0};
  }
  return rdma;
}

dpdk::DpdkConfig dpdk_config(const config::DaemonConfig& config, RailIndex rail) {
  dpdk::DpdkConfig dpdk;
  const tcp::TcpConfig tcp = tcp_config(config, rail);
  dpdk.listen_address = tcp.listen_address;
  dpdk.data_port = static_cast<std::uint16_t>(tcp.data_port + kDpdkPortOffset);
  dpdk.payload_crc = config.payload_crc;
  dpdk.detection = config.detection;
  dpdk.protection = config.fabric.data_protection;
  for (const tcp::TcpClass& c : tcp.classes) dpdk.classes.push_back({c.tag, c.window});
  if (const auto speed = config.fabric.link_speed(config.self(), rail))
    dpdk.credit_window =
        std::max(kLeastCredit, Bytes(bytes_per_second(*speed) / (seconds(1).value / kCreditTime.value)));
  return dpdk;
}

// Daemons of one machine meet in the folder of their sockets.
std::string local_folder(const config::DaemonConfig& config) {
  const std::string folder = std::filesystem::path(config.socket).parent_path().string();
  return folder.empty() ? "." : folder;
}

local::LocalConfig local_config(const config::DaemonConfig& config, RailIndex rail) {
  const tcp::TcpConfig tcp = tcp_config(config, rail);
  local::LocalConfig local{local_folder(config), tcp.listen_address, tcp.data_port, {}, config.payload_crc};
  for (const tcp::TcpClass& c : tcp.classes) local.classes.push_back({c.tag, c.window});
  return local;
}

// Law 13: hosts share a machine where the fabric file says so, by a common `local` address; never because they happen
// to run on one kernel, as those of a lab do.
Status shares_machine(const config::DaemonConfig& config, const std::string& address) {
  const fabric::Host* host = config.fabric.find_host_by_name_or_address(address);
  const auto mine = config.self().addresses.find("local");
  if (host != nullptr && mine != config.self().addresses.end()) {
    const auto theirs = host->addresses.find("local");
    if (theirs != host->addresses.end() && theirs->second.front() == mine->second.front()) return {};
  }
  return {Code::kNotFound, "the hosts have no common local address", config.fabric_path};
}
// Whether flows may go over RDMA on this rail, as daemon.yaml, the fabric file and the device say: the device, or why
// not. An error when daemon.yaml insists on it.
Result<std::string> rdma_device(const config::DaemonConfig& config, RailIndex rail, std::string* why_not) {
  using Choice = config::DaemonConfig::Transport;
  const auto not_because = [&](std::string why) {
    *why_not = std::move(why);
    return std::string();
  };
  if (config.transport == Choice::kTcp || config.transport == Choice::kDpdk)
    return not_because(fmt::format("daemon.yaml says `transport: {}`", transport_name(config.transport)));
  if (config.fabric.data_protection != DataProtection::kNone) {
    return not_because(fmt::format("{} has `data_protection: {}`, which RDMA lacks", config.fabric_path,
                                   data_protection_name(config.fabric.data_protection)));
  }
  if (config.transport == Choice::kAuto && !config.self().addresses.contains("rdma"))
    return not_because(fmt::format("host '{}' has no rdma address in {}", config.host, config.fabric_path));
  const Result<std::string> device = rdma::explain_device(rdma_config(config, rail));
  if (device.ok() || config.transport == Choice::kRdma) return device;
  spdlog::warn("flows of rail {} do not go over RDMA: {}", rail.value, device.status().to_string());
  return not_because(device.status().to_string());
}

// The same of a port that the daemon drives itself: null where there is none, and why.
Result<std::shared_ptr<std::unique_ptr<dpdk::PacketPort>>> dpdk_port(const config::DaemonConfig& config, RailIndex rail,
                                                                     std::string* why_not) {
  using Choice = config::DaemonConfig::Transport;
  const bool wanted = config.transport == Choice::kDpdk || config.transport == Choice::kAuto;
  if (!wanted || config.dpdk.devices.empty() || !config.self().addresses.contains("dpdk")) {
    *why_not = !wanted ? fmt::format("daemon.yaml says `transport: {}`", transport_name(config.transport))
               : config.dpdk.devices.empty()
                   ? "daemon.yaml names no `dpdk` devices"
                   : fmt::format("host '{}' has no dpdk address in {}", config.host, config.fabric_path);
    return std::shared_ptr<std::unique_ptr<dpdk::PacketPort>>();
  }
  auto port = open_packet_port(config, rail);
  if (port.ok() && config.on_lost_flow == config::DaemonConfig::OnLostFlow::kResume)
    spdlog::warn(
        "rail {}: flows over DPDK are not resumed when their TCP connection is lost, whatever `on_lost_flow` says",
        rail.value);
  if (port.ok()) return std::make_shared<std::unique_ptr<dpdk::PacketPort>>(std::move(*port));
  if (config.transport == Choice::kDpdk) return port.status();
  spdlog::warn("flows of rail {} do not go over DPDK: {}", rail.value, port.status().to_string());
  *why_not = port.status().to_string();
  return std::shared_ptr<std::unique_ptr<dpdk::PacketPort>>();
}

// Whether the fabric file has an address of this kind for the host at `address`.
Status offers(const config::DaemonConfig& config, const std::string& kind, const std::string& address) {
  const fabric::Host* host = config.fabric.find_host_by_name_or_address(address);
  if (host != nullptr && host->addresses.contains(kind)) return {};
  return {Code::kNotFound,
          fmt::format("host {} has no {} address", host == nullptr ? "at " + address : "'" + host->name + "'", kind),
          config.fabric_path};
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_transport(const config::DaemonConfig& config, RailIndex rail,
                                                         ports::FlowOwner& owner, ports::ProbeTokens* probes,
                                                         std::vector<RailTransport>& rails) {
  using Choice = config::DaemonConfig::Transport;
  rails.resize(std::max<std::size_t>(rails.size(), rail.value + std::size_t{1}));
  RailTransport& said = rails[rail.value];
  said = {};
  said.names_dpdk = !config.dpdk.devices.empty() || config.self().addresses.contains("dpdk");
  TL_ASSIGN_OR_RETURN(const std::string rdma, rdma_device(config, rail, &said.why_no_rdma));
  TL_ASSIGN_OR_RETURN(const auto port, dpdk_port(config, rail, &said.why_no_dpdk));
  const bool shares = config.transport == Choice::kAuto && config.self().addresses.contains("local");
  const Status folder = shares ? local::check_folder(local_folder(config)) : Status();
  // Training goes on; and nobody but the daemon's user can bring this about.
  if (!folder.ok()) spdlog::warn("flows to daemons of this machine go over the network: {}", folder.to_string());
  mixed::MixedConfig mixed;
  for (const tcp::TcpClass& c : tcp_config(config, rail).classes) mixed.classes.push_back(c.tag.cls);
  const auto add = [&](const std::string& name, const std::string& device, std::uint16_t offset, auto make, auto ask) {
    said.name += (said.name.empty() ? "" : ", ") + name;
    if (said.device.empty()) said.device = device;
    mixed.members.push_back({name, offset, std::move(make), std::move(ask)});
  };
  if (shares && folder.ok()) {
    add(
        "local", "", 0,
        [&config, rail](ports::FlowOwner& o) { return local::make_local_transport(local_config(config, rail), o); },
        [&config](const std::string& address) { return shares_machine(config, address); });
  }
  if (said.why_no_rdma.empty()) {
    add(
        "rdma", rdma, kRdmaPortOffset,
        [&config, rail](ports::FlowOwner& o) { return rdma::make_rdma_transport(rdma_config(config, rail), o); },
        [&config](const std::string& address) { return offers(config, "rdma", address); });
  }
  if (port) {
    const auto metrics = dpdk::make_port_metrics(**port);
    said.port = metrics;
    add(
        "dpdk",
        fmt::format("{} ({}, {})", (*port)->config().device,
                    dpdk::to_string((*port)->config().addresses.front().address), dpdk::to_string((*port)->mac())),
        kDpdkPortOffset,
        [&config, rail, port, metrics](ports::FlowOwner& o) {
          dpdk::DpdkConfig dpdk = dpdk_config(config, rail);
          dpdk.metrics = metrics;
          return dpdk::make_dpdk_transport(dpdk, std::move(*port), o);
        },
        [&config](const std::string& address) { return offers(config, "dpdk", address); });
  }
  if (config.transport != Choice::kRdma && config.transport != Choice::kDpdk) {
    add(
        "tcp", tcp::explain_device(tcp_config(config, rail)), 0,
        [&config, rail, probes](ports::FlowOwner& o) { return over_tcp(config, rail, probes, o); },
        [](const std::string&) -> Status { return {}; });
  }
  // Others measure the ways to a host with such addresses, so that one answers even where it has TCP alone.
  const auto has = [&](const char* kind) { return config.self().addresses.contains(kind); };
  if (!has("rdma") && !has("dpdk") && !shares) return over_tcp(config, rail, probes, owner);
  return mixed::make_mixed_transport(std::move(mixed), owner);
}

}  // namespace tensorlane::wiring
