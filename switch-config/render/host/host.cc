// Hosts: what makes a NIC honour the classes, as scripts that take mlnx_qos where it is installed and dcb elsewhere.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "switch-config/render/host/host.h"
#include "switch-config/render/host/script.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace host {
namespace {

constexpr std::size_t kMaxInterface = 15;  // IFNAMSIZ
constexpr std::uint8_t kEct0 = 2;          // ECN-capable: switches may mark
constexpr std::uint64_t kBufferStep =
    1024;  // a multiple of every NIC's buffer cell, so that it reads back as it is set

Status check(const DeviceQos& device) {
  const auto error = [&](const std::string& what, const char* fix) {
    return Status(Code::kInvalidArgument, what, fmt::format("device '{}'", device.name), fix);
  };
  for (const DevicePort& port : device.ports) {
    if (port.name.size() > kMaxInterface || port.name.find('/') != port.name.npos || port.name.starts_with('-'))
      return error(fmt::format("Linux has no interface '{}'", port.name),
                   "expected at most 15 letters, digits, '.', '_' or '-'");
  }
  for (const std::string& rdma : device.rdma_devices) {
    if (rdma.find('/') != rdma.npos || rdma.starts_with('.'))
      return error(fmt::format("there is no RDMA device '{}'", rdma), "expected a name as 'mlx5_0'");
  }
  return Status::ok_status();
}

// "a,b,c" of every queue.
template <typename Text>
std::string list(const DeviceQos& device, Text text) {
  std::string all;
  for (std::size_t q = 0; q < kQueues; ++q) all += fmt::format("{}{}", q == 0 ? "" : ",", text(device.queues[q], q));
  return all;
}

// As dcb prints a rate: the largest unit that divides it.
std::string rate(BitsPerSecond speed, unsigned percent) {
  const std::uint64_t mbps = whole_mbps(speed, percent).value / 1'000'000;
  return mbps % 1000 == 0 ? fmt::format("{}Gbit", mbps / 1000) : fmt::format("{}Mbit", mbps);
}

std::string port_line(const DeviceQos& device, std::size_t index) {
  const DevicePort& port = device.ports[index];
  const PortKind& kind = device.kinds[port.kind];
  const bool named = device.rdma_devices.size() == device.ports.size();
  const auto gbps = [&](const Queue& queue, std::size_t) {
    return queue.shaper == 0 ? std::uint64_t{0} : whole_gbps(kind.speed, queue.shaper).value / 1'000'000'000;
  };
  const auto bits = [&](const Queue& queue, std::size_t) {
    return queue.shaper == 0 ? std::string("0bit") : rate(kind.speed, queue.shaper);
  };
  const std::uint64_t need = kind.headroom ? kind.headroom->size.value : 0;
  return fmt::format("  port '{}' '{}' {} {} {} {} {}\n", port.name, named ? device.rdma_devices[index] : "", kind.mtu,
                     list(device, gbps), list(device, bits), whole_metres(kind.cable_metres),
                     (need + kBufferStep - 1) / kBufferStep * kBufferStep);
}

// TOS:priority of every DSCP that is not default traffic, in the order in which the script reads them back.
std::string filters(const DeviceQos& device) {
  std::string all;
  for (const char* family : {"ip", "ipv6"}) {
    std::vector<std::string> entries;
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      if (device.queue_of_dscp[dscp] != 0)
        entries.push_back(fmt::format("{}/{:#x}:{}", family, dscp << 2, device.queue_of_dscp[dscp]));
    }
    std::sort(entries.begin(), entries.end());
    for (const std::string& entry : entries) all += (all.empty() ? "" : " ") + entry;
  }
  return all;
}

std::string variables(const DeviceQos& device) {
  std::string dscps;
  for (const std::uint8_t queue : device.queue_of_dscp) dscps += fmt::format("{}{}", dscps.empty() ? "" : ",", queue);
  unsigned lossless = 0;
  const auto buffer = [&](const Queue& queue, std::size_t) { return queue.lossless ? ++lossless : 0; };
  const std::string prio2buffer = list(device, buffer);
  const auto marked = [&](const Queue&, std::size_t q) { return device.kinds.front().ecn[q] ? 1 : 0; };
  std::string text = fmt::format("# RoCE without a class of its own goes as DSCP {}, ECN-capable.\n", device.bulk_dscp);
  text += fmt::format("tos={}\n", device.bulk_dscp << 2 | kEct0);
  text += fmt::format("cnp_dscp={}\ncnp_priority={}\n", device.cnp_dscp, device.cnp_queue);
  text += fmt::format("dscp2prio={}\n", dscps);
  text += "# By priority, which is also the traffic class.\n";
  text += fmt::format("pfc={}\n", list(device, [](const Queue& q, std::size_t) { return q.lossless ? 1 : 0; }));
  text +=
      fmt::format("tsa={}\n", list(device, [](const Queue& q, std::size_t) { return q.strict ? "strict" : "ets"; }));
  text += fmt::format("tcbw={}\n", list(device, [](const Queue& q, std::size_t) { return q.weight; }));
  text += fmt::format("marked={}\n", list(device, marked));
  text += fmt::format("prio2buffer={}\nlossless={}\n", prio2buffer, lossless);
  return text + fmt::format("filters='{}'\n", filters(device));
}

}  // namespace
}  // namespace host

Result<std::vector<RenderedFile>> render_host(const DeviceQos& device) {
  TL_RETURN_IF_ERROR(host::check(device));
  std::string settings = host::variables(device) +
                         "# IF RDMA_DEVICE MTU GBIT/S_OF_CLASSES RATES_OF_CLASSES CABLE_METRES BUFFER\nports() {\n";
  for (std::size_t i = 0; i < device.ports.size(); ++i) settings += host::port_line(device, i);
  settings += "}\n";
  std::string text = fmt::format("#!/bin/sh\n# {}: its NICs, now and at every boot\n", device.name);
  for (const std::string& note : device.notes) text += fmt::format("# {}\n", note);
  text += fmt::format("set -eu\nmode=${{1:-apply}}\n{}{}", settings, kHostScript);
  std::vector<RenderedFile> files;
  files.push_back({.name = "apply.sh", .text = std::move(text), .program = true});
  for (const auto& [mode, what] :
       {std::pair{"verify", "says what of its NICs is not as it should be, and changes nothing"},
        std::pair{"rollback", "restores what apply.sh found"}}) {
    files.push_back(
        {.name = fmt::format("{}.sh", mode),
         .text = fmt::format("#!/bin/sh\n# {}: {}\nexec \"$(dirname \"$0\")/apply.sh\" {}\n", device.name, what, mode),
         .program = true});
  }
  return files;
}

}  // namespace tensorlane::switches
