#include "switch-config/lint/rules_of_buffers.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace tensorlane::lint {
namespace {

using findings::Report;
using findings::Severity;

constexpr std::uint64_t kUsualMtu = 9216;

// Bit p: some port has a buffer, or memory at its egress, for class p that is meant to be lossless.
struct Given {
  PrioritySet buffers = 0, egress = 0;
};

Given given_anywhere(const Device& device) {
  Given given;
  for (const Port& port : device.ports)
    for (std::size_t p = 0; p < kPriorities; ++p) {
      const auto bit = static_cast<PrioritySet>(1u << p);
      if (port.buffers[p].lossless()) given.buffers = static_cast<PrioritySet>(given.buffers | bit);
      if (port.queues[p].lossless_buffer) given.egress = static_cast<PrioritySet>(given.egress | bit);
    }
  return given;
}

void check_group(const Device& device, const Port& port, std::size_t p, const Given& given, bool any, Report& report) {
  if (port.buffers[p].kind != Buffer::Kind::kUnknown || !any) return;
  // The dynamic model makes no buffer that no row asks for; the traditional one may do so where no port has a row.
  const bool dynamic = device.computes_headroom.value_or(false);
  if (!dynamic && !has(given.buffers, p)) return;
  report.findings.push_back({"L3", dynamic ? Severity::kError : Severity::kWarning, device.name, port.pfc_place,
                             fmt::format("PFC is on for {} of {}, but its priority group has no buffer", p, port.name),
                             fmt::format("give the group {} a lossless buffer", p)});
}

void check_egress(const Device& device, const Port& port, std::size_t q, const Given& given, Report& report) {
  const Queue& queue = port.queues[q];
  const bool lossless = has(*port.pfc, q);
  const auto add = [&](Severity severity, const std::string& place, const std::string& message,
                       const std::string& fix) {
    report.findings.push_back({"L3", severity, device.name, place, message, fix});
  };
  if (lossless && queue.lossless_buffer == false)
    add(Severity::kError, queue.buffer_place,
        fmt::format("lossless queue {} takes the memory of lossy ones where packets leave: they are dropped there", q),
        "give it the lossless egress profile");
  if (!lossless && queue.lossless_buffer == true)
    add(Severity::kWarning, queue.buffer_place,
        fmt::format("queue {} is lossy and takes the memory of lossless ones where packets leave", q),
        "give it the lossy egress profile");
  if (lossless && queue.buffer_place.empty() && has(given.egress, q))
    add(Severity::kWarning, port.pfc_place,
        fmt::format("lossless queue {} of {} has no egress buffer, unlike that of other ports", q, port.name),
        "give it the lossless egress profile");
}

// The least headroom that either formula asks for: below it, no release of the NOS would compute it so.
std::optional<Bytes> least_headroom(const Device& device, const Port& port) {
  if (!port.speed || !port.cable_metres) return std::nullopt;
  headroom::Parameters parameters;
  parameters.port = {*port.speed, *port.cable_metres, Bytes(port.mtu.value_or(kUsualMtu)), Bytes(0)};
  const std::uint64_t lossless = device.lossless_mtu.value_or(device.asic ? 1024 : kRoceMtu);
  parameters.port.lossless_mtu = Bytes(std::min(lossless, parameters.port.port_mtu.value));
  if (!device.asic) {
    const auto estimate = headroom::generic_headroom(parameters.port);
    return estimate.ok() ? std::optional(estimate->lower) : std::nullopt;
  }
  parameters.asic = *device.asic;
  parameters.small_packet_percent = device.small_packet_percent.value_or(100);
  parameters.shared_headroom = true;  // which takes away the 2 KiB that are for comfort
  std::optional<Bytes> least;
  for (const auto formula : {headroom::Formula::kCurrent, headroom::Formula::kOlder}) {
    parameters.formula = formula;
    const auto result = headroom::nvidia_headroom(parameters);
    if (result.ok() && (!least || result->xoff < *least)) least = result->xoff;
  }
  return least;
}

void check_made_for(const Device& device, const Port& port, const Buffer& buffer, Report& report) {
  const bool slower = buffer.made_for_speed && port.speed && *buffer.made_for_speed < *port.speed;
  const bool shorter = buffer.made_for_metres && port.cable_metres && *buffer.made_for_metres < *port.cable_metres;
  if (!slower && !shorter) return;
  report.findings.push_back(
      {"L6", Severity::kError, device.name, buffer.place,
       fmt::format("its headroom was made for {} than this port has", slower ? "a slower speed" : "a shorter cable"),
       "use the profile of the port's speed and cable"});
}

}  // namespace

void check_buffers(const Device& device, Report& report) {
  if (device.language != "sonic") return;  // elsewhere the switch gives buffers itself
  const Given given = given_anywhere(device);
  const bool any = std::any_of(device.ports.begin(), device.ports.end(), [](const Port& port) {
    return std::any_of(port.buffers.begin(), port.buffers.end(),
                       [](const Buffer& buffer) { return buffer.kind != Buffer::Kind::kUnknown; });
  });
  for (const Port& port : device.ports) {
    if (port.pfc.value_or(0) == 0) continue;
    for (std::size_t p = 0; p < kPriorities; ++p) {
      if (has(*port.pfc, p)) check_group(device, port, p, given, any, report);
      check_egress(device, port, p, given, report);
    }
  }
}

void check_headroom(const Device& device, const Port& port, Report& report) {
  if (port.pfc.value_or(0) == 0) return;
  const auto add = [&](Severity severity, const std::string& place, const std::string& message,
                       const std::string& fix) {
    report.findings.push_back({"L6", severity, device.name, place, message, fix});
  };
  if (port.cable_metres && *port.cable_metres == 0)
    add(Severity::kWarning, port.cable_place, "a cable of 0 m gets no lossless buffer", "give the cable's length");
  for (const Buffer& buffer : port.buffers) {
    if (!buffer.lossless()) continue;
    check_made_for(device, port, buffer, report);
    if (buffer.kind == Buffer::Kind::kComputed && device.computes_headroom == false)
      add(Severity::kError, buffer.place, "asks for computed headroom, which this buffer model does not do",
          "set buffer_model to dynamic, or name a profile");
    if (buffer.kind == Buffer::Kind::kComputed && !port.cable_metres && port.cable_place.empty())
      add(Severity::kError, buffer.place, "headroom is computed from the length of the cable, which is not given",
          "give the port a cable length");
    const auto least = least_headroom(device, port);
    if (buffer.xoff && least && *buffer.xoff < *least)
      add(device.asic ? Severity::kError : Severity::kWarning, buffer.profile,
          fmt::format("{} bytes of headroom, but {} need {}{}: packets are lost while the peer stops",
                      buffer.xoff->value, port.name, device.asic ? "" : "at least about ", least->value),
          fmt::format("reserve {} bytes or more", least->value));
  }
}

// What priority groups of all ports reserve, against the pools that it is taken from.
void check_pools(const Device& device, Report& report) {
  std::map<std::string, std::uint64_t> reserved;
  for (const Port& port : device.ports)
    for (const Buffer& buffer : port.buffers)
      if (buffer.reserved && device.pools.count(buffer.pool) != 0) {
        std::uint64_t& sum = reserved[buffer.pool];
        sum += std::min(buffer.reserved->value, std::uint64_t{1} << 40);
      }
  for (const auto& [name, sum] : reserved) {
    const Pool& pool = device.pools.at(name);
    if (sum <= pool.size.value) continue;
    report.findings.push_back({"L6", Severity::kError, device.name, pool.place,
                               fmt::format("priority groups reserve {} bytes of a pool of {}", sum, pool.size.value),
                               "make the pool larger, or reserve less on ports that need no lossless traffic"});
  }
}

}  // namespace tensorlane::lint
