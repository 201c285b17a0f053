#include "switch-config/diff/wanted.h"

#include <algorithm>
#include <memory>

#include "common/base/assert.h"
#include "switch-config/lint/languages.h"
#include "switch-config/render/host/host.h"
#include "switch-config/render/render.h"

namespace tensorlane::diff {
namespace {

using lint::kPriorities;
using switches::DeviceQos;
using switches::PortKind;

const PortKind* kind_of(const DeviceQos& device, const std::string& port) {
  for (const switches::DevicePort& own : device.ports)
    if (own.name == port) return &device.kinds[own.kind];
  return nullptr;
}

lint::Map* add_map(lint::Device& device, std::size_t size) {
  device.maps.push_back(std::make_unique<lint::Map>());
  device.maps.back()->size = size;
  return device.maps.back().get();
}

lint::Port host_port(const DeviceQos& device, const PortKind& kind, const lint::Port& running, bool whole_gbps) {
  const auto any = [&](auto has) { return std::any_of(running.queues.begin(), running.queues.end(), has); };
  const bool scheduled = any([](const lint::Queue& queue) { return queue.scheduling.has_value(); });
  const bool shaped = any([](const lint::Queue& queue) { return queue.shaper.has_value(); });
  lint::Port port;
  port.name = running.name;
  if (running.pfc) port.pfc = static_cast<lint::PrioritySet>(device.lossless_mask());
  for (std::size_t q = 0; q < kPriorities; ++q) {
    const switches::Queue& queue = device.queues[q];
    if (scheduled) {
      port.queues[q].scheduling = lint::Scheduling{.strict = queue.strict};
      if (!queue.strict) port.queues[q].scheduling->weight = queue.weight;
    }
    if (!shaped) continue;
    port.queues[q].shaper = lint::Shaper{};
    if (queue.shaper != 0)
      port.queues[q].shaper->rate = whole_gbps ? switches::host::whole_gbps(kind.speed, queue.shaper)
                                               : switches::host::whole_mbps(kind.speed, queue.shaper);
  }
  if (running.mtu) port.mtu = kind.mtu;
  if (running.cable_metres) port.cable_metres = static_cast<double>(switches::host::whole_metres(kind.cable_metres));
  return port;
}

lint::Device wanted_host(const DeviceQos& device, const lint::Device& running) {
  lint::Device wanted;
  wanted.name = device.name;
  wanted.language = running.language;
  wanted.is_host = true;
  lint::Map* const dscps = add_map(wanted, switches::kDscps);
  std::copy(device.queue_of_dscp.begin(), device.queue_of_dscp.end(), dscps->to.begin());
  lint::Map* const queues = add_map(wanted, kPriorities);
  for (std::size_t q = 0; q < kPriorities; ++q) queues->to[q] = static_cast<std::uint8_t>(q);
  for (const lint::Port& port : running.ports) {
    const PortKind* const kind = kind_of(device, port.name);
    if (kind == nullptr) continue;
    wanted.ports.push_back(host_port(device, *kind, port, running.language == "mlnx_qos"));
    wanted.ports.back().dscp_to_class = dscps;
    if (port.class_to_queue != nullptr) wanted.ports.back().class_to_queue = queues;
  }
  return wanted;
}

}  // namespace

Result<lint::Device> wanted(const DeviceQos& device, const lint::Device& running) {
  if (device.is_host) return wanted_host(device, running);
  const auto nos = std::find(fabric::kNosNames.begin(), fabric::kNosNames.end(), running.language);
  TL_ASSERT(nos != fabric::kNosNames.end());
  auto model = switches::BufferModel::kByPlatform;
  if (running.computes_headroom)
    model = *running.computes_headroom ? switches::BufferModel::kDynamic : switches::BufferModel::kTraditional;
  TL_ASSIGN_OR_RETURN(const std::vector<switches::RenderedFile> files,
                      switches::render(device, static_cast<fabric::Nos>(nos - fabric::kNosNames.begin()), model));
  const auto same =
      std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.name == running.form; });
  const std::string& text = (same == files.end() ? files.front() : *same).text;
  TL_ASSIGN_OR_RETURN(const lint::Language language, lint::parse_language(running.language));
  findings::Report ignored;
  TL_ASSIGN_OR_RETURN(lint::Device wanted,
                      lint::parse_configuration(language, text, device.name, device.name, ignored));
  // Only where the switch says a speed is it known to be another.
  for (lint::Port& port : wanted.ports) {
    const auto is = std::find_if(running.ports.begin(), running.ports.end(),
                                 [&](const lint::Port& own) { return own.name == port.name; });
    const PortKind* const kind = kind_of(device, port.name);
    if (!port.speed && kind != nullptr && is != running.ports.end() && is->speed) port.speed = kind->speed;
  }
  return wanted;
}

ClassNames class_names(const DeviceQos& device, const lint::Device& wanted) {
  ClassNames names;
  for (const lint::Port& port : wanted.ports) {
    const PortKind* const kind = kind_of(device, port.name);
    if (kind == nullptr || !kind->trusted || port.dscp_to_class == nullptr) continue;
    for (std::size_t dscp = 0; dscp < switches::kDscps; ++dscp) {
      const auto number = port.dscp_to_class->to[dscp];
      if (number && *number < names.size()) names[*number] = device.queues[device.queue_of_dscp[dscp]].name;
    }
  }
  return names;
}

}  // namespace tensorlane::diff
