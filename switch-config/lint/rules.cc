#include "switch-config/lint/rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "switch-config/lint/rules_of_buffers.h"
#include "switch-config/lint/rules_of_classes.h"
#include "switch-config/lint/unchecked.h"

namespace tensorlane::lint {
namespace {

using findings::Report;
using findings::Severity;

constexpr std::uint64_t kRoceHeaders = 62;  // IPv6, UDP and BTH with its check value and a pad

void check_mtu(const Device& device, const Port& port, Report& report) {
  if (!port.mtu || port.pfc.value_or(0) == 0) return;
  if (*port.mtu < kRoceMtu + kRoceHeaders)
    report.findings.push_back(
        {"L7", Severity::kWarning, device.name, port.mtu_place,
         fmt::format("{} bytes are too few for RoCE packets of {} and their headers", *port.mtu, kRoceMtu),
         "set an MTU of 9216"});
  else if (device.lossless_mtu && *device.lossless_mtu > *port.mtu)
    report.findings.push_back({"L7", Severity::kWarning, device.name, port.mtu_place,
                               fmt::format("headroom assumes lossless packets of {} bytes, but the port takes {}",
                                           *device.lossless_mtu, *port.mtu),
                               "let both agree"});
}

void check_watchdog(const Device& device, const Port& port, Report& report) {
  if (!port.watchdog) {
    if (port.pfc.value_or(0) != 0 && device.has_watchdogs)
      report.findings.push_back({"L8", Severity::kWarning, device.name, port.pfc_place,
                                 fmt::format("{} is lossless and has no watchdog, unlike other ports", port.name),
                                 "give it one"});
    return;
  }
  const Watchdog& dog = *port.watchdog;
  const auto add = [&](Severity severity, const std::string& message, const std::string& fix) {
    report.findings.push_back({"L8", severity, device.name, dog.place, message, fix});
  };
  // SONiC's watchdog looks at the priorities of a field of their own.
  if (device.language == "sonic" && port.pfc.value_or(0) != 0 && !port.watched)
    report.findings.push_back(
        {"L8", device.names_watched ? Severity::kWarning : Severity::kNote, device.name, port.watched_place,
         fmt::format("{} has a watchdog, but no priority that it looks at", port.name),
         "name its lossless priorities in pfcwd_sw_enable, unless the release knows no such field"});
  if (device.watchdog_poll && dog.detection && *dog.detection < *device.watchdog_poll)
    add(Severity::kError, "it is to detect a storm in less time than it takes to look", "detect in one poll or more");
  if (device.watchdog_poll && dog.restoration && *dog.restoration < *device.watchdog_poll)
    add(Severity::kError, "it is to restore in less time than it takes to look", "restore after one poll or more");
  else if (dog.detection && dog.restoration && *dog.restoration < *dog.detection)
    add(Severity::kWarning, "it restores sooner than it detects, so that a storm comes back at once",
        "restore after the detection time or later");
}

// What nearly all ports of a device have, where at least three say something: nine of ten, or all but one.
template <typename Value, typename Get>
std::optional<Value> usual(const Device& device, Get get) {
  std::map<Value, std::size_t> counts;
  std::size_t all = 0;
  for (const Port& port : device.ports)
    if (const auto value = get(port)) {
      ++counts[*value];
      ++all;
    }
  for (const auto& [value, count] : counts)
    if (all >= 3 && (count * 10 >= all * 9 || count + 1 == all)) return value;
  return std::nullopt;
}

// Whether a port without PFC has a map of its own that leads nothing to the lossless classes of others, as one that
// nobody of the fabric is connected to.
bool lets_none_in(const Port& port, PrioritySet lossless) {
  if (*port.pfc != 0 || port.dscp_to_class == nullptr) return false;
  return std::none_of(port.dscp_to_class->to.begin(), port.dscp_to_class->to.end(),
                      [&](const auto& cls) { return cls && *cls < kPriorities && has(lossless, *cls); });
}

void check_outliers(const Device& device, Report& report) {
  const auto pfc = usual<PrioritySet>(device, [](const Port& port) { return port.pfc; });
  const auto lossless_mtu = [](const Port& port) {
    return port.pfc.value_or(0) == 0 ? std::optional<std::uint64_t>() : port.mtu;
  };
  const auto mtu = usual<std::uint64_t>(device, lossless_mtu);
  for (const Port& port : device.ports) {
    if (pfc && port.pfc && *port.pfc != *pfc && !lets_none_in(port, *pfc))
      report.findings.push_back({"L3", Severity::kWarning, device.name, port.pfc_place,
                                 fmt::format("{} has other lossless priorities than nearly all ports", port.name),
                                 "let all ports that carry lossless traffic agree"});
    if (mtu && *mtu > kRoceMtu && !port.mtu && port.pfc.value_or(0) != 0)
      report.findings.push_back({"L7", Severity::kWarning, device.name, port.mtu_place,
                                 fmt::format("{} says no MTU, while nearly all lossless ports say {}", port.name, *mtu),
                                 "let all ports agree"});
    if (mtu && lossless_mtu(port) && *port.mtu != *mtu)
      report.findings.push_back({"L7", Severity::kWarning, device.name, port.mtu_place,
                                 fmt::format("{} bytes, while nearly all lossless ports have {}", *port.mtu, *mtu),
                                 "let all ports agree"});
  }
}

void check_ends(const Device& a, const Port& one, const Device& b, const Port& other, Report& report) {
  const auto facing = fmt::format("{} of {}", other.name, b.name);
  if (one.pfc && other.pfc && one.pfc_on_wire() != other.pfc_on_wire())
    report.findings.push_back({"L3", Severity::kError, a.name, one.pfc_place,
                               fmt::format("{} across the link has other lossless priorities: one end pauses what the "
                                           "other does not stop",
                                           facing),
                               "let both ends agree"});
  if (one.mtu && other.mtu && *one.mtu != *other.mtu)
    report.findings.push_back({"L7", Severity::kError, a.name, one.mtu_place,
                               fmt::format("{} bytes, but {} across the link has {}", *one.mtu, facing, *other.mtu),
                               "let both ends agree"});
}

void check_links(const std::vector<Device>& devices, Report& report) {
  std::map<std::pair<std::string, std::string>, std::pair<const Device*, const Port*>> ends;
  for (const Device& device : devices)
    for (const Port& port : device.ports) ends[{device.name, port.name}] = {&device, &port};
  for (const Device& device : devices) {
    for (const Port& port : device.ports) {
      const auto found = ends.find({port.peer_device, port.peer_port});
      if (found != ends.end()) check_ends(device, port, *found->second.first, *found->second.second, report);
    }
  }
}

const Port* first_lossless_port(const Device& device) {
  const auto found = std::find_if(device.ports.begin(), device.ports.end(), [](const Port& port) {
    return port.pfc.value_or(0) != 0 && port.dscp_to_class != nullptr;
  });
  return found == device.ports.end() ? nullptr : &*found;
}

// Of a host, only code points that are lossless on the switch matter: the rest of its map is the NIC's default.
void compare_code_points(const Device& device, const Port& port, const Device& reference, const Port& expected,
                         Report& report) {
  const Map& map = *port.dscp_to_class;
  for (std::size_t dscp = 0; dscp < map.size; ++dscp) {
    const auto here = map.to[dscp], there = expected.dscp_to_class->to[dscp];
    if (!here || !there || *here == *there) continue;
    const auto lossless = [](const Port& on, std::size_t cls) {
      return cls < kPriorities && has(on.pfc.value_or(0), cls);
    };
    if (device.is_host && !lossless(expected, *there)) continue;
    // Numbers of classes mean the same in one language. In all of them, a lossless class is the priority of its pause.
    if (device.language != reference.language) {
      const bool both = lossless(port, *here) && lossless(expected, *there);
      if (both ? port.on_wire[*here] == expected.on_wire[*there] : lossless(port, *here) == lossless(expected, *there))
        continue;
    }
    report.findings.push_back(
        {"L1", Severity::kWarning, device.name, map.entry(dscp),
         fmt::format("DSCP {} is in class {} here and in class {} on {}", dscp, *here, *there, reference.name),
         "map it the same way on all devices"});
  }
}

// Code points that are in different classes on different devices, and NICs that pause other priorities than switches.
// The first switch with lossless ports is what the others are compared to.
void check_same_classes(const std::vector<Device>& devices, Report& report) {
  const auto reference = std::find_if(devices.begin(), devices.end(), [](const Device& device) {
    return !device.is_host && first_lossless_port(device) != nullptr;
  });
  if (reference == devices.end()) return;
  const Port& expected = *first_lossless_port(*reference);
  for (const Device& device : devices) {
    if (device.is_host && device.ports.front().pfc && device.ports.front().pfc_on_wire() != expected.pfc_on_wire())
      report.findings.push_back(
          {"L3", Severity::kError, device.name, device.ports.front().pfc_place,
           fmt::format("the NIC's lossless priorities are others than those of {}", reference->name),
           "let the NIC and its switch agree"});
    if (const Port* port = first_lossless_port(device))
      compare_code_points(device, *port, *reference, expected, report);
  }
}

}  // namespace

void check_device(const Device& device, Report& report) {
  bool lossless = false;
  for (const Port& port : device.ports) {
    lossless |= port.pfc.value_or(0) != 0;
    check_code_points(device, port, report);
    if (!device.is_host) check_identity(device, port, report);  // check_host() looks at what shares a NIC's queue
    check_pfc(device, port, report);
    check_order(device, port, report);
    check_ecn(device, port, report);
    check_headroom(device, port, report);
    check_mtu(device, port, report);
    check_watchdog(device, port, report);
  }
  if (lossless && !device.has_watchdogs && !device.is_host)
    report.findings.push_back({"L8", Severity::kWarning, device.name, device.place,
                               "no lossless port has a PFC watchdog: one host that pauses for ever stops the fabric",
                               "configure the watchdog on every lossless port"});
  check_outliers(device, report);
  check_buffers(device, report);
  check_pools(device, report);
  say_unchecked(device, report);
}

void check_fabric(const std::vector<Device>& devices, Report& report) {
  check_links(devices, report);
  check_same_classes(devices, report);
}

}  // namespace tensorlane::lint
