#include "switch-config/lint/rules_of_classes.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace tensorlane::lint {
namespace {

using findings::Finding;
using findings::Report;
using findings::Severity;

constexpr std::size_t kRoutingDscp = 48;  // CS6: routing protocols mark it, and NICs their CNPs
constexpr std::size_t kMostLossless = 2;  // without evidence for the platform
constexpr std::uint64_t kMostBytes = 1ull << 31;

bool leads_to(const Map& map, std::size_t cls) {
  return std::find(map.to.begin(), map.to.end(), cls) != map.to.end();
}

// Whether some code point of the port's maps leads to the traffic class.
bool reached(const Port& port, std::size_t cls) {
  const Map* const maps[] = {port.dscp_to_class, port.pcp_to_class};
  return std::any_of(std::begin(maps), std::end(maps),
                     [&](const Map* map) { return map != nullptr && leads_to(*map, cls); });
}

bool queue_is_used(const Port& port, std::size_t queue) {
  if (port.class_to_queue == nullptr) return false;
  for (std::size_t cls = 0; cls < port.class_to_queue->to.size(); ++cls)
    if (port.class_to_queue->to[cls] == queue && reached(port, cls)) return true;
  return false;
}

// Whether a map that is known does not map a number to itself.
bool differs(const Map* map, std::size_t number) {
  return map != nullptr && map->to[number].value_or(0xff) != number;
}

// A platform's preset is what was meant unless the configuration says most of the map: then what is left out was
// forgotten, and the preset matters where it is another class than that of unmarked traffic.
bool is_missing(const Map& map, std::size_t from) {
  if (!map.has_preset) return !map.to[from];
  return !map.said[from] && map.said.count() * 2 > map.size && map.to[from] != map.to[0];
}

void check_complete(const Device& device, const Map& map, const char* what, Report& report) {
  for (std::size_t from = 0; from < map.size; ++from)
    if (is_missing(map, from))
      report.findings.push_back({"L1", Severity::kWarning, device.name, map.entry(from),
                                 fmt::format("this {} is not mapped: what it becomes is the platform's choice", what),
                                 "map it to the default class"});
}

}  // namespace

void check_code_points(const Device& device, const Port& port, Report& report) {
  if (port.dscp_to_class != nullptr) check_complete(device, *port.dscp_to_class, "DSCP", report);
  if (port.pcp_to_class != nullptr) check_complete(device, *port.pcp_to_class, "PCP", report);
  // What is not bound on SONiC has no preset.
  if (device.language == "sonic" && port.pfc.value_or(0) != 0 && port.dscp_to_class == nullptr)
    report.findings.push_back({"L1", Severity::kWarning, device.name, port.dscp_place,
                               fmt::format("{} is lossless, but no map says which class a DSCP becomes", port.name),
                               "bind a DSCP_TO_TC_MAP to it, or to PORT_QOS_MAP|global"});
  if (!port.pfc || port.dscp_to_class == nullptr) return;
  const auto& dscps = *port.dscp_to_class;
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const bool lossless = has(*port.pfc, p) || port.buffers[p].lossless();
    if (!lossless || leads_to(dscps, p)) continue;
    if (dscps.said.none() && dscps.has_preset && reached(port, p)) continue;  // classes are told by PCP alone
    report.findings.push_back({"L1", Severity::kWarning, device.name, dscps.place,
                               fmt::format("no DSCP leads to lossless class {} of {}", p, port.name),
                               "map the DSCP of its traffic to it"});
    if (!port.buffers[p].place.empty() && !reached(port, p))
      report.findings.push_back({"L2", Severity::kWarning, device.name, port.buffers[p].place,
                                 fmt::format("what is lossless is {}, but no traffic has this number", p),
                                 "let the numbers of its traffic, its queue and its pause agree"});
  }
  const auto routing = port.dscp_to_class->to[kRoutingDscp];
  if (routing && *routing < kPriorities && has(*port.pfc, *routing))
    report.findings.push_back({"L13", Severity::kWarning, device.name, port.dscp_to_class->entry(kRoutingDscp),
                               "DSCP 48, which routing protocols and congestion notifications use, is in a lossless "
                               "class: PFC can stop them",
                               "give it a lossy class"});
}

namespace {

// What PFC stops is what the same priority of a tagged packet leads to, where the configuration says so.
void check_tagged(const Device& device, const Port& port, Report& report) {
  if (port.pcp_to_class == nullptr) return;
  const Map& pcps = *port.pcp_to_class;
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const std::size_t wire = port.on_wire[p];
    if (!has(*port.pfc, p) || pcps.to[wire] == p) continue;
    // The PCP that the configuration leads to the class, where no DSCP leads to it.
    const bool by_dscp = port.dscp_to_class != nullptr && leads_to(*port.dscp_to_class, p);
    std::optional<std::size_t> other;
    for (std::size_t pcp = 0; pcp < kPriorities && !by_dscp; ++pcp)
      if (pcps.said[pcp] && pcps.to[pcp] == p) other = pcp;
    if (!pcps.said[wire] && (!other || !pcps.to[wire])) continue;
    // Either line may be the wrong one.
    std::vector<std::string> places;
    if (!port.buffers[p].place.empty()) places.push_back(port.buffers[p].place);
    if (other || places.empty()) places.push_back(pcps.said[wire] && !other ? pcps.entry(wire) : pcps.entry(*other));
    for (const std::string& place : places)
      report.findings.push_back({"L2", Severity::kError, device.name, place,
                                 fmt::format("class {} is paused by priority {}, but PCP {} leads to class {}", p, wire,
                                             wire, *pcps.to[wire]),
                                 "let the priority of its pause frames be its PCP"});
  }
}

}  // namespace

namespace {

// Where the priority in pause frames is not the class's number, and PCPs do not say that it is meant, it is that of the
// class selector of its DSCPs: what hosts that map DSCPs by eights pause.
void check_wire(const Device& device, const Port& port, Report& report) {
  const Map* const dscps = port.dscp_to_class;
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const std::size_t wire = port.on_wire[p];
    if (!has(*port.pfc, p) || wire == p || dscps == nullptr) continue;
    bool mapped = port.pcp_to_class != nullptr && port.pcp_to_class->said[wire], any = false;
    for (std::size_t dscp = 0; dscp < dscps->size; ++dscp) {
      any |= dscps->to[dscp] == p;
      mapped |= dscps->to[dscp] == p && dscp / 8 == wire;
    }
    if (mapped || !any) continue;
    report.findings.push_back(
        {"L2", Severity::kWarning, device.name, port.buffers[p].place.empty() ? port.pfc_place : port.buffers[p].place,
         fmt::format("class {} is paused by priority {}, which is neither its number nor that of its DSCPs", p, wire),
         "let the priority of its pause frames be what hosts pause"});
  }
}

// Notifications that a switch drops, or marks in vain, are in the queue of DSCP 48 where it is a class of its own.
void check_notifications(const Device& device, const Port& port, Report& report) {
  if (port.dscp_to_class == nullptr || port.class_to_queue == nullptr) return;
  const auto cls = port.dscp_to_class->to[kRoutingDscp], other = port.dscp_to_class->to[0];
  if (!cls || *cls >= kPriorities || cls == other || has(*port.pfc, *cls)) return;
  const auto at = port.class_to_queue->to[*cls];
  if (!at || *at >= kPriorities || (other && port.class_to_queue->to[*other] == at)) return;
  const Ecn* const ecn = port.queues[*at].ecn;
  if (ecn == nullptr || (!ecn->marks && !ecn->drops)) return;
  report.findings.push_back(
      {"L5", ecn->marks ? Severity::kNote : Severity::kWarning, device.name, ecn->place,
       fmt::format("queue {} of congestion notifications {} early", *at, ecn->marks ? "marks" : "drops"),
       "leave them to a strict queue without ECN"});
}

}  // namespace

void check_identity(const Device& device, const Port& port, Report& report) {
  const Map* const groups = port.class_to_group;
  const Map* const queues = port.class_to_queue;
  if (!port.pfc) return;
  const auto add = [&](const Map& map, std::size_t from, const std::string& message, std::size_t right) {
    report.findings.push_back(
        {"L2", Severity::kError, device.name, map.entry(from), message, fmt::format("map {} to {}", from, right)});
  };
  for (std::size_t p = 0; p < kPriorities; ++p) {
    if (!has(*port.pfc, p)) continue;
    if (differs(groups, p))
      add(*groups, p,
          fmt::format("lossless class {} does not fill priority group {}: its packets are dropped, not paused", p, p),
          p);
    if (differs(queues, p))
      add(*queues, p, fmt::format("lossless class {} is not in queue {}, which its PFC priority stops", p, p), p);
    const std::size_t wire = port.on_wire[p];
    if (port.pfc_to_queue != nullptr && port.pfc_to_queue->to[wire].value_or(0xff) != p)
      add(*port.pfc_to_queue, wire, fmt::format("a pause of priority {} does not stop queue {}", wire, p), p);
  }
  check_tagged(device, port, report);
  check_wire(device, port, report);
  for (std::size_t cls = 0; cls < kPriorities; ++cls) {
    if (has(*port.pfc, cls)) continue;
    const auto shares = [&](const Map* map) {
      return map != nullptr && map->to[cls] && *map->to[cls] < kPriorities && has(*port.pfc, *map->to[cls]);
    };
    if (shares(groups))
      add(*groups, cls,
          fmt::format("class {} is lossy and shares priority group {} with lossless traffic", cls, *groups->to[cls]),
          0);
    if (shares(queues) && reached(port, cls))
      add(*queues, cls,
          fmt::format("class {} is lossy and shares queue {} with lossless traffic", cls, *queues->to[cls]), cls);
  }
}

void check_pfc(const Device& device, const Port& port, Report& report) {
  if (!port.pfc) return;
  const PrioritySet pfc = *port.pfc;
  const auto add = [&](Severity severity, const std::string& place, const std::string& message,
                       const std::string& fix) {
    report.findings.push_back({"L3", severity, device.name, place, message, fix});
  };
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const Buffer& buffer = port.buffers[p];
    if (buffer.lossless() && !has(pfc, p))
      add(Severity::kError, port.pfc_place,
          fmt::format("priority group {} has a lossless buffer, but PFC is off for {}: what overflows is dropped", p,
                      p),
          fmt::format("turn PFC on for {}, or give the group a lossy buffer", p));
    if (has(pfc, p) && buffer.kind == Buffer::Kind::kLossy)
      add(Severity::kError, buffer.place,
          fmt::format("PFC is on for priority {}, but its group has a lossy buffer without headroom", p),
          "give it a lossless buffer");
    if (port.watched && has(*port.watched, p) && !has(pfc, p))
      add(Severity::kError, port.watched_place, fmt::format("priority {} has a watchdog, but no PFC", p),
          fmt::format("turn PFC on for {}, or the watchdog off", p));
    if (port.watched && !has(*port.watched, p) && has(pfc, p))
      add(Severity::kWarning, port.watched_place, fmt::format("lossless priority {} has no watchdog", p),
          fmt::format("add {}", p));
  }
  PrioritySet lossless = pfc;
  for (std::size_t p = 0; p < kPriorities; ++p)
    if (port.buffers[p].lossless()) lossless = static_cast<PrioritySet>(lossless | 1u << p);
  const auto count = static_cast<std::size_t>(std::popcount(lossless));
  if (count > kMostLossless)
    for (const std::string& place : {port.pfc_place, port.classes_place})
      if (!place.empty())
        report.findings.push_back({"L12", Severity::kWarning, device.name, place,
                                   fmt::format("{} lossless priorities: each takes headroom on every port", count),
                                   "have two at most, unless the platform's vendor says that it can do more"});
  if (port.watchdog && lossless == 0)
    add(Severity::kWarning, port.pfc_place, fmt::format("{} has a PFC watchdog, but no PFC", port.name),
        "turn PFC on for its lossless priorities, or the watchdog off");
}

namespace {

// Notifications that wait behind what they are to slow: their queue is one that the configuration calls so, or that of
// DSCP 48 where it is a class of its own.
void check_urgency(const Device& device, const Port& port, Report& report) {
  std::optional<std::size_t> routing;
  if (port.dscp_to_class != nullptr && port.class_to_queue != nullptr) {
    const auto cls = port.dscp_to_class->to[kRoutingDscp], other = port.dscp_to_class->to[0];
    if (cls && *cls < kPriorities && cls != other) routing = port.class_to_queue->to[*cls];
  }
  const bool any_strict = std::any_of(port.queues.begin(), port.queues.end(),
                                      [](const Queue& queue) { return queue.scheduling && queue.scheduling->strict; });
  for (std::size_t q = 0; q < kPriorities; ++q) {
    const Queue& queue = port.queues[q];
    if (!queue.scheduling || queue.scheduling->strict || has(*port.pfc, q)) continue;
    if (!queue.of_notifications && !(routing == q && any_strict)) continue;
    // DSCP 48 may be another class than that of notifications.
    const Severity severity = queue.of_notifications ? Severity::kWarning : Severity::kNote;
    report.findings.push_back({"L4", severity, device.name, queue.place,
                               fmt::format("queue {} of congestion notifications is weighted: they wait in the "
                                           "congestion that they are to end",
                                           q),
                               "make it strict"});
  }
}

}  // namespace

void check_order(const Device& device, const Port& port, Report& report) {
  if (port.pfc.value_or(0) != 0 && !device.is_host) check_urgency(device, port, report);
  if (device.strict_first) return;
  // NVIDIA, "Quality of Service" of Cumulus Linux, "Egress Scheduler": a strict queue is always served ahead of others.
  const bool settled = device.language == "cumulus";
  std::optional<std::size_t> strict;
  for (std::size_t q = 0; q < kPriorities; ++q) {
    const Queue& queue = port.queues[q];
    if (!queue.scheduling) continue;
    if (queue.scheduling->strict)
      strict = q;
    else if (strict && queue_is_used(port, q))
      report.findings.push_back({"L4", settled ? Severity::kNote : Severity::kWarning, device.name, queue.place,
                                 fmt::format("queue {} is weighted and above queue {}, which is strict: {}", q, *strict,
                                             settled ? "it goes after it" : "which goes first depends on the platform"),
                                 "keep strict queues above all weighted ones"});
  }
}

namespace {

void check_thresholds(const Device& device, const Ecn& ecn, Report& report) {
  const auto add = [&](Severity severity, const std::string& message, const std::string& fix) {
    report.findings.push_back({"L5", severity, device.name, ecn.place, message, fix});
  };
  const std::string& percent_place = ecn.percent_place.empty() ? ecn.place : ecn.percent_place;
  if (ecn.kmin && ecn.kmax && *ecn.kmin > *ecn.kmax)
    add(Severity::kError, fmt::format("marking begins at {} {} and ends at {}", *ecn.kmin, ecn.unit, *ecn.kmax),
        "put the minimum below the maximum");
  // A step is what DCTCP wants; then it marks all.
  if (ecn.kmin && ecn.kmax && *ecn.kmin == *ecn.kmax)
    add(ecn.percent == 100u ? Severity::kNote : Severity::kWarning,
        fmt::format("marking begins and ends at {} {}: all packets or none", *ecn.kmin, ecn.unit),
        "put the minimum below the maximum");
  if (device.language == "sonic" && (ecn.kmax.value_or(0) >= kMostBytes || ecn.kmin.value_or(0) >= kMostBytes))
    add(Severity::kError, "a threshold of 2 GiB or more is not read by the device", "stay below 2147483648");
  if (ecn.percent && (*ecn.percent < 1 || *ecn.percent > 100) && ecn.marks)
    report.findings.push_back({"L5", *ecn.percent == 0 ? Severity::kWarning : Severity::kError, device.name,
                               percent_place, fmt::format("marks with a probability of {} percent", *ecn.percent),
                               "say 1 to 100"});
}

}  // namespace

void check_ecn(const Device& device, const Port& port, Report& report) {
  for (const Queue& queue : port.queues)
    if (queue.ecn != nullptr) check_thresholds(device, *queue.ecn, report);
  if (!port.pfc) return;
  check_notifications(device, port, report);
  const bool any_marks = std::any_of(port.queues.begin(), port.queues.end(),
                                     [](const Queue& queue) { return queue.ecn != nullptr && queue.ecn->marks; });
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const Queue& queue = port.queues[p];
    if (!has(*port.pfc, p)) continue;
    std::string not_marking = queue.ecn == nullptr ? queue.place : queue.ecn->marks_place;
    if (not_marking.empty() && queue.ecn != nullptr) not_marking = queue.ecn->drops ? queue.ecn->place : queue.place;
    if (queue.ecn != nullptr && !queue.ecn->marks && queue.ecn->drops)
      report.findings.push_back({"L5", Severity::kError, device.name, not_marking,
                                 fmt::format("lossless queue {} drops packets where it should mark them", p),
                                 "turn ECN on"});
    else if ((queue.ecn == nullptr || !queue.ecn->marks) && (any_marks || !queue.place.empty()))
      report.findings.push_back({"L5", Severity::kWarning, device.name,
                                 not_marking.empty() ? port.name + "|" + std::to_string(p) : not_marking,
                                 fmt::format("lossless queue {} does not mark: PFC is all that slows its senders", p),
                                 "turn ECN on for it"});
    const auto stops_at = port.buffers[p].stops_at;
    if (queue.ecn != nullptr && queue.ecn->kmax && stops_at && *queue.ecn->kmax >= stops_at->value)
      report.findings.push_back(
          {"L5", Severity::kWarning, device.name, queue.ecn->place,
           fmt::format("marks every packet from {} bytes on only, but PFC stops the sender at {} at the latest",
                       *queue.ecn->kmax, stops_at->value),
           "put the maximum below"});
  }
}

}  // namespace tensorlane::lint
