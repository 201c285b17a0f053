#include "daemon/wiring/transports.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/mixed/mixed_transport.h"
#include "daemon/transport/rdma/rdma_transport.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/wiring/lane_config.h"

namespace tensorlane::wiring {
namespace {

// Handshakes of RDMA flows have ports of their own behind those of TCP.
constexpr std::uint16_t kRdmaPortOffset = 16;

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
// Whether flows may go over RDMA on this rail, as daemon.yaml, the fabric file and the device say. An error when
// daemon.yaml insists on it.
Result<RailTransport> rail_transport(const config::DaemonConfig& config, RailIndex rail) {
  using Choice = config::DaemonConfig::Transport;
  const auto only_tcp = [&](std::string why) {
    return RailTransport{"tcp", tcp::explain_device(tcp_config(config, rail)), std::move(why)};
  };
  if (config.transport == Choice::kTcp) return only_tcp("daemon.yaml says `transport: tcp`");
  if (config.fabric.data_protection != DataProtection::kNone) {
    return only_tcp(fmt::format("{} has `data_protection: {}`, which RDMA lacks", config.fabric_path,
                                data_protection_name(config.fabric.data_protection)));
  }
  if (config.transport == Choice::kAuto && !config.self().addresses.contains("rdma"))
    return only_tcp(fmt::format("host '{}' has no rdma address in {}", config.host, config.fabric_path));
  const Result<std::string> device = rdma::explain_device(rdma_config(config, rail));
  if (device.ok()) return RailTransport{config.transport == Choice::kRdma ? "rdma" : "rdma, tcp", *device, ""};
  if (config.transport == Choice::kRdma) return device.status();
  spdlog::warn("flows of rail {} go over TCP: {}", rail.value, device.status().to_string());
  return only_tcp(device.status().to_string());
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_transport(const config::DaemonConfig& config, RailIndex rail,
                                                         ports::FlowOwner& owner, ports::ProbeTokens* probes,
                                                         std::vector<RailTransport>& rails) {
  TL_ASSIGN_OR_RETURN(const RailTransport transport, rail_transport(config, rail));
  rails.resize(std::max<std::size_t>(rails.size(), rail.value + std::size_t{1}));
  rails[rail.value] = transport;
  const bool rdma = transport.why_no_rdma.empty();
  const bool shares =
      config.transport == config::DaemonConfig::Transport::kAuto && config.self().addresses.contains("local");
  const Status folder = shares ? local::check_folder(local_folder(config)) : Status();
  const bool local = shares && folder.ok();
  // Training goes on; and nobody but the daemon's user can bring this about.
  if (!folder.ok()) spdlog::warn("flows to daemons of this machine go over the network: {}", folder.to_string());
  if (local) rails[rail.value].name = "local, " + rails[rail.value].name;
  // Others measure the ways to a host with an rdma or a local address, so that one answers even where it has TCP alone.
  if (!config.self().addresses.contains("rdma") && !shares) return over_tcp(config, rail, probes, owner);
  mixed::MixedConfig mixed;
  for (const tcp::TcpClass& c : tcp_config(config, rail).classes) mixed.classes.push_back(c.tag.cls);
  if (local) {
    mixed.members.push_back(
        {"local", 0,
         [&config, rail](ports::FlowOwner& o) { return local::make_local_transport(local_config(config, rail), o); },
         [&config](const std::string& address) { return shares_machine(config, address); }});
  }
  if (rdma) {
    mixed.members.push_back(
        {"rdma", kRdmaPortOffset,
         [&config, rail](ports::FlowOwner& o) { return rdma::make_rdma_transport(rdma_config(config, rail), o); },
         [&config](const std::string& address) -> Status {
           const fabric::Host* host = config.fabric.find_host_by_name_or_address(address);
           if (host != nullptr && host->addresses.contains("rdma")) return {};
           return {Code::kNotFound, "the host has no rdma address", config.fabric_path};
         }});
  }
  if (config.transport != config::DaemonConfig::Transport::kRdma) {
    mixed.members.push_back({"tcp", 0,
                             [&config, rail, probes](ports::FlowOwner& o) { return over_tcp(config, rail, probes, o); },
                             [](const std::string&) -> Status { return {}; }});
  }
  return mixed::make_mixed_transport(std::move(mixed), owner);
}

}  // namespace tensorlane::wiring
