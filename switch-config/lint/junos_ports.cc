// Juniper Junos: the ports that the statements make together.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "switch-config/lint/junos_settings.h"

namespace tensorlane::lint::junos {
namespace {

// Classes that the switch has where the configuration defines none of their name (Juniper, "Default CoS Settings" of
// the QFX series); fcoe and no-loss are lossless then.
struct DefaultClass {
  const char* name;
  std::uint8_t queue;
  bool lossless;
};
constexpr DefaultClass kDefaults[] = {{"fcoe", 3, true}, {"no-loss", 4, true}, {"mcast", 8, false}};
// Those of other families, whose queues differ by model.
constexpr std::string_view kOtherDefaults[] = {
    "be", "be1", "ef", "af", "nc", "expedited-forwarding", "assured-forwarding"};

bool is_own_class(std::string_view name) {
  return name.starts_with("mcast-") ||
         std::find(std::begin(kOtherDefaults), std::end(kOtherDefaults), name) != std::end(kOtherDefaults);
}

// Classifiers, schedulers and profiles that every switch has: "default", "dscp-default", "ieee8021p-untrust".
bool is_own(std::string_view name) {
  return name == "default" || name.starts_with("default-") || name.ends_with("-default") ||
         name.ends_with("-untrust") || name.ends_with("-compatibility");
}

// "et-*" stands for "et-0/0/0", "all" for any.
bool stands_for(std::string_view pattern, std::string_view name) {
  if (pattern == "all") return true;
  const std::size_t star = pattern.find('*');
  return star != std::string_view::npos && name.size() + 1 >= pattern.size() &&
         name.starts_with(pattern.substr(0, star)) && name.ends_with(pattern.substr(star + 1));
}

class Ports {
 public:
  Ports(Settings& settings, Context& context) : settings_(settings), context_(context) {
    queues_ = context_.new_identity(context_.path() + ": forwarding class = queue");
  }

  void add() {
    add_default_classes();
    for (auto& [name, dscps] : settings_.dscp_classifiers) maps_[name] = resolve(dscps, 64, "DSCP");
    for (auto& [name, pcps] : settings_.pcp_classifiers) pcp_maps_[name] = resolve(pcps, kPriorities, "PCP");
    check_classes();
    check_profiles();
    add_bound();
    add_forgotten();
  }

 private:
  void add_default_classes() {
    std::set<std::string_view> used;
    for (const auto* classifiers : {&settings_.dscp_classifiers, &settings_.pcp_classifiers})
      for (const auto& [name, points] : *classifiers)
        for (const CodePoint& point : points) used.insert(point.cls);
    for (const auto& [name, lines] : settings_.scheduler_maps)
      for (const Served& served : lines) used.insert(served.cls);
    for (const DefaultClass& cls : kDefaults)
      if (used.count(cls.name) != 0)
        settings_.classes.try_emplace(cls.name, ForwardingClass{context_.path(), cls.queue, cls.lossless, {}});
  }

  const ForwardingClass* find_class(const std::string& name) const {
    const auto found = settings_.classes.find(name);
    return found == settings_.classes.end() || !found->second.queue || *found->second.queue >= kPriorities
               ? nullptr
               : &found->second;
  }

  // A class of which the configuration says nothing.
  void check_class(const std::string& name, const std::string& place) {
    if (settings_.classes.count(name) != 0) return;
    if (is_own_class(name))
      context_.add("L9", findings::Severity::kNote, place,
                   fmt::format("'{}' is the switch's own class: which queue it has is not looked at", name),
                   "define it under forwarding-classes to have it checked");
    else
      context_.error("L9", place, fmt::format("there is no forwarding class '{}'", name),
                     "name one that is there, or add it");
  }

  // What is there and does nothing, or not enough.
  void check_profiles() {
    const bool lossless = std::any_of(settings_.classes.begin(), settings_.classes.end(),
                                      [](const auto& cls) { return cls.second.lossless; });
    if (lossless && !settings_.no_headroom.empty())
      context_.error("L6", settings_.no_headroom, "no headroom for lossless classes", "give the partition a share");
    for (const auto& [name, pause] : settings_.pauses) {
      const bool bound = std::any_of(settings_.bound.begin(), settings_.bound.end(),
                                     [&wanted = name](const auto& port) { return port.second.pause == wanted; });
      if (!bound && !settings_.bound.empty())
        context_.warning("L3", pause.place,
                         fmt::format("no interface has the congestion-notification-profile '{}'", name),
                         "bind it to the interfaces of lossless traffic, or remove it");
    }
  }

  Map* resolve(const std::vector<CodePoint>& points, std::size_t size, std::string_view what) {
    Map* const map = context_.new_map(points.empty() ? context_.path() : points.front().place, size);
    for (const CodePoint& point : points) {
      const ForwardingClass* const cls = find_class(point.cls);
      if (cls != nullptr)
        context_.map(*map, point.point, *cls->queue, point.place, what);
      else
        check_class(point.cls, point.place);
    }
    for (std::size_t from = 0; from < size; ++from) map->to[from] = map->to[from].value_or(0);
    map->has_preset = true;
    return map;
  }

  void check_classes() {
    std::map<std::uint8_t, const ForwardingClass*> by_queue, by_priority;
    for (const auto& [name, cls] : settings_.classes) {
      if (!cls.queue) continue;
      const ForwardingClass*& first = by_queue[*cls.queue];
      if (first != nullptr && first->lossless != cls.lossless)
        context_.error("L2", (first->lossless ? cls : *first).place,
                       fmt::format("lossy and lossless traffic share queue {}", *cls.queue),
                       "give each class a queue of its own");
      if (first == nullptr || cls.lossless) first = &cls;
      if (!cls.lossless || !cls.priority) continue;
      const ForwardingClass*& same = by_priority[*cls.priority];
      if (same != nullptr && same->queue != cls.queue)
        context_.error("L2", cls.place,
                       fmt::format("queues {} and {} pause the same priority", *same->queue, *cls.queue),
                       "give each a pfc-priority of its own");
      same = &cls;
    }
  }

  template <typename Things>
  const typename Things::mapped_type* find(const Things& things, const std::string& name, const std::string& place,
                                           const char* what) {
    if (name.empty()) return nullptr;
    const auto found = things.find(name);
    if (found != things.end()) return &found->second;
    if (is_own(name)) return nullptr;
    context_.error("L9", place, fmt::format("there is no {} '{}'", what, name), "name one that is there, or add it");
    return nullptr;
  }

  const std::array<Queue, kPriorities>& served(const std::string& map_name) {
    const auto [found, is_new] = served_.try_emplace(map_name);
    std::array<Queue, kPriorities>& queues = found->second;
    if (!is_new) return queues;
    unsigned sum = 0;
    for (const Served& served : settings_.scheduler_maps[map_name]) {
      const Scheduler* const scheduler = find(settings_.schedulers, served.scheduler, served.place, "scheduler");
      check_class(served.cls, served.place);
      const ForwardingClass* const cls = find_class(served.cls);
      if (scheduler == nullptr || cls == nullptr) continue;
      Queue& queue = queues[*cls->queue];
      queue.place = scheduler->place;
      queue.scheduling = scheduler->scheduling ? *scheduler->scheduling : Scheduling{};
      queue.of_notifications |= names_notifications(served.cls);
      queue.shaper = scheduler->shaper;
      sum += queue.scheduling->strict ? 0 : queue.scheduling->weight.value_or(0);
      if (sum > 100)
        context_.error("L9", scheduler->place, fmt::format("the transmit rates sum up to {} percent", sum),
                       "let them be 100");
      queue.ecn = marking(*scheduler);
    }
    return queues;
  }

  const Ecn* marking(const Scheduler& scheduler) {
    Ecn& ecn = *context_.new_ecn(scheduler.marks ? scheduler.ecn_place : scheduler.drop_place);
    if (Ecn* const* const profile =
            find(settings_.drop_profiles, scheduler.drop_profile, scheduler.drop_place, "drop profile")) {
      const std::string place = ecn.place;
      ecn = **profile;
      if (!scheduler.marks) ecn.place = place;
    } else if (!scheduler.marks) {
      return nullptr;
    }
    if (!scheduler.marks) ecn.percent_place.clear();
    ecn.marks = scheduler.marks;
    return &ecn;
  }

  // A port has one scheduler map, or one for each set of forwarding classes.
  void add_queues(const Bound& bound, Port& port) {
    const auto add = [&](const std::string& name, const std::string& place) {
      if (find(settings_.scheduler_maps, name, place, "scheduler map") == nullptr) return;
      const auto& queues = served(name);
      for (std::size_t q = 0; q < kPriorities; ++q)
        if (queues[q].scheduling) port.queues[q] = queues[q];
    };
    for (const Reference& map : bound.scheduler_maps) add(map.name, map.place);
    for (const Reference& profile : bound.profiles) {
      const std::string* const map =
          find(settings_.profile_maps, profile.name, profile.place, "traffic-control-profile");
      if (map != nullptr) add(*map, profile.place);
    }
  }

  void add_pfc(const Bound& bound, Port& port) {
    for (const auto& [name, cls] : settings_.classes) {
      if (find_class(name) == nullptr) continue;
      Buffer& buffer = port.buffers[*cls.queue];
      if (buffer.lossless()) continue;
      buffer.kind = cls.lossless ? Buffer::Kind::kLossless : Buffer::Kind::kLossy;
      buffer.place = cls.place == context_.path() ? bound.pause_place : cls.place;
      if (cls.priority) port.on_wire[*cls.queue] = *cls.priority;
    }
    const Pause* const pause =
        find(settings_.pauses, bound.pause, bound.pause_place, "congestion-notification-profile");
    if (pause == nullptr) return;
    PrioritySet set = 0;
    for (const auto& [point, place] : pause->dscps)
      if (port.dscp_to_class != nullptr) set = static_cast<PrioritySet>(set | 1u << *port.dscp_to_class->to[point]);
    for (const auto& [point, place] : pause->pcps) {
      const auto queue = std::find(port.on_wire.begin(), port.on_wire.end(), point) - port.on_wire.begin();
      if (port.pcp_to_class != nullptr && port.pcp_to_class->said[point])
        set = static_cast<PrioritySet>(set | 1u << *port.pcp_to_class->to[point]);
      else if (queue < static_cast<std::ptrdiff_t>(kPriorities))
        set = static_cast<PrioritySet>(set | 1u << queue);
    }
    port.pfc = set;
    port.pfc_place = bound.pause_place;
    port.pfc_to_queue = pause->to_queue;
    port.cable_metres = pause->metres;
    port.cable_place = pause->metres_place;
    if (pause->watchdog_place.empty()) return;
    port.watchdog =
        Watchdog{pause->watchdog_place, pause->poll * static_cast<std::int64_t>(pause->detection), pause->recovery};
    context_.device().has_watchdogs = true;
  }

  // The interfaces that have no words of their own.
  std::vector<std::string> silent() const {
    std::vector<std::string> names;
    for (const auto& [name, physical] : settings_.interfaces)
      if (settings_.bound.count(name) == 0 && !physical.member) names.push_back(name);
    return names;
  }

  // Those of `silent` that it stands for; itself, where that is none.
  static std::vector<std::string> names_of(const std::string& name, const std::vector<std::string>& silent) {
    std::vector<std::string> names;
    for (const std::string& other : silent)
      if (stands_for(name, other)) names.push_back(other);
    if (names.empty()) names.push_back(name);
    return names;
  }

  void add_bound() {
    std::set<std::string> paused;  // classifiers of ports with a profile
    for (const auto& [name, bound] : settings_.bound)
      if (!bound.pause.empty()) paused.insert(bound.dscp + "|" + bound.pcp);
    const std::vector<std::string> others = silent();
    for (const auto& [pattern, bound] : settings_.bound) {
      for (const std::string& name : names_of(pattern, others)) {
        covered_.insert(name);
        const auto found = settings_.interfaces.find(name);
        if (found != settings_.interfaces.end() && found->second.disabled) continue;
        Port port = make(name, bound, paused.count(bound.dscp + "|" + bound.pcp) != 0);
        if (found != settings_.interfaces.end()) add_physical(found->second, port);
        context_.device().ports.push_back(std::move(port));
      }
    }
  }

  Port make(const std::string& name, const Bound& bound, bool others_are_paused) {
    Port port;
    port.name = name;
    port.class_to_queue = queues_;
    if (Map* const* const map = find(maps_, bound.dscp, bound.classifier_place, "classifier"))
      port.dscp_to_class = *map;
    if (Map* const* const map = find(pcp_maps_, bound.pcp, bound.classifier_place, "classifier"))
      port.pcp_to_class = *map;
    add_queues(bound, port);
    port.pfc_place = bound.place;
    if (!bound.pause.empty() && bound.dscp.empty() && bound.pcp.empty())
      context_.warning("L1", fmt::format("{} | {}", bound.pause_place, name),
                       "PFC pauses priorities here, but no classifier leads traffic to them",
                       "give the port the classifier that the others have");
    if (!bound.pause.empty())
      add_pfc(bound, port);
    else if (others_are_paused)
      port.pfc = PrioritySet(0);
    port.mtu_place = bound.place;
    return port;
  }

  void add_physical(const Physical& physical, Port& port) {
    port.mtu = physical.mtu;
    port.speed = physical.speed;
    port.mtu_place = physical.mtu_place.empty() ? physical.place : physical.mtu_place;
    if (!physical.flow_control.empty() && port.pfc.value_or(0) != 0)
      context_.error("L3", physical.flow_control, "link pause stops all classes, where PFC is to stop some",
                     "write no-flow-control");
  }

  // Ports like those of the fabric that class-of-service does not name.
  void add_forgotten() {
    for (const auto& [name, physical] : settings_.interfaces) {
      if (covered_.count(name) != 0 || physical.disabled || physical.member || name.starts_with("ae") ||
          physical.mtu.value_or(0) < 9000)
        continue;
      Port port;
      port.name = name;
      port.mtu = physical.mtu;
      port.mtu_place = physical.mtu_place;
      port.pfc = PrioritySet(0);
      port.pfc_place = physical.place;
      context_.device().ports.push_back(std::move(port));
    }
  }

  Settings& settings_;
  Context& context_;
  Map* queues_;
  std::map<std::string, Map*> maps_, pcp_maps_;
  std::map<std::string, std::array<Queue, kPriorities>> served_;  // by scheduler map, once its schedulers were found
  std::set<std::string> covered_;
};

}  // namespace

void add_ports(Settings& settings, Context& context) {
  Ports(settings, context).add();
}

}  // namespace tensorlane::lint::junos
