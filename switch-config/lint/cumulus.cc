// NVIDIA Cumulus Linux: NVUE commands or qos_features.conf. A switch priority is what PFC stops; an egress map leads it
// to a traffic class, which is a queue.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "switch-config/lint/cumulus_settings.h"
#include "switch-config/lint/languages.h"

namespace tensorlane::lint {
namespace cumulus {

Mapping& Settings::mapping(std::string_view name, Context& context, bool flat) {
  Mapping& mapping = mappings[std::string(name)];
  if (mapping.dscps != nullptr) return mapping;
  mapping.dscps = context.new_map(context.path() + ": dscp", 64);
  mapping.pcps = context.new_map(context.path() + ": pcp", kPriorities);
  // What the file leaves out: its default priority, or what the switch comes with.
  for (std::size_t dscp = 0; dscp < 64; ++dscp)
    mapping.dscps->to[dscp] = static_cast<std::uint8_t>(flat ? 0 : dscp / 8);
  for (std::size_t pcp = 0; pcp < kPriorities; ++pcp) mapping.pcps->to[pcp] = static_cast<std::uint8_t>(flat ? 0 : pcp);
  mapping.dscps->has_preset = mapping.pcps->has_preset = true;
  return mapping;
}

Map& Settings::queue_map(std::string_view name, Context& context) {
  Map*& map = queue_maps[std::string(name)];
  if (map == nullptr) map = context.new_identity(context.path() + ": egress queues");
  return *map;
}

void schedule(Queue& queue, bool strict, const std::string& place) {
  if (!queue.scheduling) queue.scheduling = Scheduling{};
  queue.scheduling->strict = strict;
  queue.place = place;
}

bool set_threshold(std::string_view word, std::string_view value, Ecn& ecn) {
  const auto number = lint::number(value);
  if (!number) return false;
  if (word.starts_with("min-threshold") || word.starts_with("min_threshold"))
    ecn.kmin = *number;
  else if (word.starts_with("max-threshold") || word.starts_with("max_threshold"))
    ecn.kmax = *number;
  else if (word == "probability" && *number <= 1000)
    ecn.percent = static_cast<unsigned>(*number);
  else
    return false;
  return true;
}

void check_buffer(const Pfc& pfc, Context& context) {
  if (pfc.buffer && pfc.xoff && *pfc.xoff > *pfc.buffer)
    context.error("L6", pfc.place,
                  fmt::format("it stops its peer at {} bytes of a buffer of {}", *pfc.xoff, *pfc.buffer),
                  "leave room for what is on the cable, or leave both to the switch");
}

namespace {

// What `nv set qos roce` stands for where nothing else is said (NVIDIA, "RDMA over Converged Ethernet - RoCE").
void expand_roce(Context& context, Settings& settings) {
  if (settings.roce.empty()) return;
  if (!settings.explicit_.empty())
    context.warning("L14", settings.roce,
                    "the RoCE macro sets what other lines set, too: which of them holds is hard to see",
                    "remove the macro, or the other lines");
  if (settings.roce_mode == "lossy" || settings.roce_mode == "lossy-multi-tc") return;
  settings.mapping(kGlobal, context, false);
  Map& queues = settings.queue_map(kGlobal, context);
  for (std::size_t p = 0; p < kPriorities; ++p) {
    if (queues.said[p]) continue;
    queues.to[p] = static_cast<std::uint8_t>(p == 3 || p == 6 ? p : 0);
    queues.places[p] = settings.roce;
  }
  if (settings.schedules.count(kGlobal) == 0) {
    Schedule& schedule = settings.schedules[std::string(kGlobal)];
    for (const std::size_t q : {0u, 3u}) {
      cumulus::schedule(schedule[q], false, settings.roce);
      schedule[q].scheduling->weight = 50;
    }
    cumulus::schedule(schedule[6], true, settings.roce);
  }
  if (settings.markings.count(kGlobal) == 0) {
    Ecn& ecn = *context.new_ecn(settings.roce);
    ecn.marks = true;
    ecn.kmin = 150'000;
    ecn.kmax = 1'500'000;
    ecn.percent = 100;
    settings.markings[std::string(kGlobal)][3] = &ecn;
  }
  Pfc& pfc = settings.pfcs[std::string(kGlobal)];
  if (pfc.place.empty()) pfc.place = settings.roce;
  if (pfc.priorities == 0) pfc.priorities = 1u << 3;
  if (pfc.metres_place.empty()) {
    pfc.metres = settings.roce_metres.value_or(100);
    pfc.metres_place = settings.roce;
  }
}

class Ports {
 public:
  Ports(Context& context, Settings& settings) : context_(context), settings_(settings) {}

  void add() {
    Device& device = context_.device();
    device.watchdog_poll = settings_.poll;
    device.watchdog_poll_place = settings_.poll_place;
    for (auto& [name, pfc] : settings_.pfcs) {
      check_pfc(pfc);
      check_buffer(pfc, context_);
    }
    spread();
    for (const auto& [name, port] : settings_.ports)
      if (!port.pfc.empty()) paused_.insert(port.mapping);
    for (auto& [name, port] : settings_.ports) device.ports.push_back(make(name, port));
  }

 private:
  // What is said of all ports is of each that says nothing else.
  void spread() {
    const auto global = settings_.pfcs.find(kGlobal);
    if (global != settings_.pfcs.end() && settings_.ports.empty())
      settings_.ports[std::string(kAllPorts)].place = global->second.place;
    const auto all = settings_.ports.find(kAllPorts);
    const PortSettings common = all == settings_.ports.end() ? PortSettings() : all->second;
    if (all != settings_.ports.end() && settings_.ports.size() > 1) settings_.ports.erase(all);
    for (auto& [name, port] : settings_.ports) {
      if (port.pfc.empty()) {
        port.pfc = common.pfc;
        port.pfc_place = common.pfc_place;
      }
      if (port.pfc.empty() && global != settings_.pfcs.end()) {
        port.pfc = kGlobal;
        port.pfc_place = global->second.place;
      }
      if (!port.watchdog) port.watchdog = common.watchdog;
      if (port.mapping.empty()) port.mapping = common.mapping;
      if (port.schedule.empty()) port.schedule = common.schedule;
      if (port.marking.empty()) port.marking = common.marking;
      if (port.shaping.empty()) port.shaping = common.shaping;
    }
  }

  void check_pfc(const Pfc& pfc) {
    if (!pfc.tx)
      context_.error("L3", pfc.tx_place, "the switch sends no pause frames: what its buffers cannot hold is dropped",
                     "enable tx");
    if (!pfc.rx)
      context_.error("L3", pfc.rx_place, "the switch does not stop when its peer asks: the peer drops", "enable rx");
    if (pfc.priorities == 0)
      context_.warning("L3", pfc.place, "the profile pauses no priority", "name the lossless ones");
  }

  template <typename Profiles>
  auto* find(Profiles& profiles, const std::string& name) {
    const auto found = profiles.find(name.empty() ? std::string(kGlobal) : name);
    return found == profiles.end() ? nullptr : &found->second;
  }

  Port make(const std::string& name, const PortSettings& said) {
    // A line may stand for many ports.
    const auto of_port = [&](const std::string& place) { return fmt::format("{} | {}", place, name); };
    Port port;
    port.name = name;
    port.mtu = said.mtu;
    port.mtu_place = of_port(said.mtu_place.empty() ? said.place : said.mtu_place);
    port.speed = said.speed;
    port.class_to_queue = &settings_.queue_map(kGlobal, context_);
    port.pfc = PrioritySet(0);
    port.pfc_place = of_port(said.place);
    if (!said.pfc.empty()) {
      port.pfc_place = of_port(said.pfc_place);
      const auto pfc = settings_.pfcs.find(said.pfc);
      if (pfc != settings_.pfcs.end()) {
        port.pfc = pfc->second.priorities;
        port.cable_metres = pfc->second.metres;
        port.cable_place = pfc->second.metres_place;
        port.classes_place = pfc->second.place;
      } else {
        context_.error("L9", said.pfc_place, fmt::format("there is no PFC profile '{}'", said.pfc),
                       "name one that is there, or add it");
      }
    } else if (!said.watchdog &&
               (said.mapping.empty() ? said.mtu.value_or(0) < 9000 : paused_.count(said.mapping) == 0)) {
      port.pfc.reset();
    }
    add_mapping(said, port);
    if (const auto* schedule = find(settings_.schedules, said.schedule)) port.queues = *schedule;
    if (const auto* marking = find(settings_.markings, said.marking))
      for (std::size_t q = 0; q < kPriorities; ++q) port.queues[q].ecn = (*marking)[q];
    if (const auto* shaping = find(settings_.shapings, said.shaping))
      for (std::size_t q = 0; q < kPriorities; ++q) port.queues[q].shaper = (*shaping)[q];
    if (port.pfc.value_or(0) != 0 && !said.link_pause.empty())
      context_.error("L3", said.link_pause, "link pause stops all classes, where PFC is to stop some", "turn it off");
    port.watchdog = said.watchdog;
    if (port.watchdog) {
      port.watchdog->detection =
          settings_.poll.value_or(milliseconds(100)) * static_cast<std::int64_t>(settings_.robustness);
      context_.device().has_watchdogs = true;
    }
    return port;
  }

  void add_mapping(const PortSettings& said, Port& port) {
    const auto* const mapping = find(settings_.mappings, said.mapping);
    if (mapping == nullptr) return;
    if (mapping->trust != "port" && mapping->trust != "l2") port.dscp_to_class = mapping->dscps;
    if (mapping->trust != "port") port.pcp_to_class = mapping->pcps;
    if (port.pfc.value_or(0) == 0 || port.dscp_to_class != nullptr) return;
    if (mapping->trust == "port")
      context_.error("L1", mapping->trust_place, "ports trust no mark: all that enters is of one class",
                     "trust l3 or both");
    else
      context_.warning("L1", mapping->trust_place, "ports trust PCP alone: what has no VLAN tag loses its class",
                       "trust l3 or both");
  }

  Context& context_;
  Settings& settings_;
  std::set<std::string> paused_;  // mappings of ports with PFC
};

// "cumulus@leaf1:mgmt:~$ nv set ..."
void remove_prompt(Line& line) {
  const auto nv = std::find(line.words.begin(), line.words.end(), "nv");
  if (nv != line.words.end() && (line[0].find('@') != std::string_view::npos || line[0] == "$"))
    line.words.erase(line.words.begin(), nv);
}

}  // namespace
}  // namespace cumulus

Result<Device> parse_cumulus(std::string_view text, const std::string& path, const std::string& name,
                             findings::Report& report) {
  const bool is_document = cumulus::is_document(text);
  std::deque<std::string> texts;
  TL_ASSIGN_OR_RETURN(std::vector<Line> lines,
                      is_document ? cumulus::commands_of(text, path, texts) : lines_of(text, path, "#"));
  Device device = new_device(name, path, "cumulus");
  bool commands = is_document;
  for (Line& line : lines) {
    cumulus::remove_prompt(line);
    commands |= line[0] == "nv";
    if (line.starts_with("nv set system hostname")) device.name = line[4].empty() ? name : std::string(line[4]);
  }
  if (!commands) device.form = "qos_features.conf";
  Context context(path, device, report);
  cumulus::Settings settings;
  if (commands)
    cumulus::read_commands(lines, context, settings);
  else
    cumulus::read_flat(lines, context, settings);
  cumulus::expand_roce(context, settings);
  cumulus::Ports(context, settings).add();
  return device;
}

}  // namespace tensorlane::lint
