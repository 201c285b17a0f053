// Juniper Junos of the QFX series. A forwarding class is its queue; which priority is in its pause frames is said
// apart.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "switch-config/lint/junos_statements.h"
#include "switch-config/lint/languages.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

struct ForwardingClass {
  std::string place;
  std::optional<std::uint8_t> queue;
  bool lossless = false;
  std::optional<std::uint8_t> priority;
};

struct CodePoint {
  std::uint8_t point;
  std::string cls, place;
};

struct Pause {  // a congestion-notification-profile
  std::string place;
  std::vector<std::pair<std::uint8_t, std::string>> dscps, pcps;
  Map* to_queue = nullptr;
  std::optional<double> metres;
  std::string metres_place;
  std::string watchdog_place;
  Duration poll = milliseconds(100), recovery = milliseconds(200);
  std::uint64_t detection = 2;  // polls
};

struct Scheduler {
  std::string place;
  std::optional<Scheduling> scheduling;
  std::optional<Shaper> shaper;
  bool marks = false;
  std::string drop_profile, drop_place, ecn_place;
};

struct Bound {  // an interface of class-of-service
  std::string place, scheduler_map, scheduler_map_place, pause, pause_place, dscp, pcp, classifier_place;
};

struct Physical {
  std::optional<std::uint64_t> mtu;
  std::string place, mtu_place, flow_control;
  std::optional<BitsPerSecond> speed;
  bool disabled = false;
};

class Junos {
 public:
  Junos(const std::string& path, Device& device, findings::Report& report) : context_(path, device, report) {
    device.strict_first = true;
    queues_ = context_.new_identity(path + ": forwarding class = queue");
    classes_ = {{"best-effort", {path, 0, false, {}}}, {"network-control", {path, 7, false, {}}}};
  }

  void read(const std::vector<Line>& lines) {
    for (const Line& line : lines) {
      const bool known = line[0] == "class-of-service" ? read_cos(line, context_.place(line))
                         : line[0] == "interfaces"     ? read_interface(line, context_.place(line))
                         : line[0] == "firewall"       ? !classifies(line)
                                                       : !is_about_qos(line);
      if (!known) context_.unparsed(line);
    }
    for (auto& [name, dscps] : dscp_classifiers_) maps_[name] = resolve(dscps, 64, "DSCP");
    for (auto& [name, pcps] : pcp_classifiers_) pcp_maps_[name] = resolve(pcps, kPriorities, "PCP");
    check_classes();
    add_ports();
  }

 private:
  // A filter drops and polices what it likes; only where it chooses a class it is more than that.
  static bool classifies(const Line& line) {
    return std::find(line.words.begin(), line.words.end(), "forwarding-class") != line.words.end();
  }

  bool read_cos(const Line& line, const std::string& place) {
    const std::string_view part = line[1];
    if (part == "forwarding-classes") return read_class(line, place);
    if (part == "classifiers") return read_classifier(line, place);
    if (part == "congestion-notification-profile") return read_pause(line, place, pauses_[std::string(line[2])]);
    if (part == "drop-profiles") return read_drop_profile(line, place);
    if (part == "schedulers") return read_scheduler(line, place, schedulers_[std::string(line[2])]);
    if (part == "scheduler-maps") {
      if (line[3] != "forwarding-class" || line[5] != "scheduler") return false;
      scheduler_maps_[std::string(line[2])].push_back({std::string(line[4]), std::string(line[6]), place});
      return true;
    }
    if (part == "traffic-control-profiles") {
      if (line[3] == "scheduler-map") profile_maps_[std::string(line[2])] = line[4];
      return line[3] == "scheduler-map" || line[3] == "guaranteed-rate" || line[3] == "shaping-rate";
    }
    if (part == "forwarding-class-sets" || part == "rewrite-rules" || part == "host-outbound-traffic") return true;
    if (part == "shared-buffer") return read_shared(line, place);
    if (part == "interfaces") return read_binding(line, place);
    return false;
  }

  bool read_class(const Line& line, const std::string& place) {
    if (line[2] == "queue") {  // queue 3 bulk
      const auto queue = small_number(line[3], 11);
      if (!queue) return false;
      classes_[std::string(line[4])].queue = *queue;
      classes_[std::string(line[4])].place = place;
      return true;
    }
    if (line[2] != "class") return false;
    ForwardingClass& cls = classes_[std::string(line[3])];
    cls.place = place;
    for (std::size_t i = 4; i < line.size(); ++i) {
      if (line[i] == "no-loss") {
        cls.lossless = true;
      } else if (line[i] == "queue-num" || line[i] == "pfc-priority") {
        const bool queue = line[i] == "queue-num";
        const auto value = small_number(line[++i], queue ? 11 : 7);
        if (!value)
          context_.error("L9", place, fmt::format("'{}' is no {}", line[i], queue ? "queue" : "priority"),
                         "write 0 to 7");
        (queue ? cls.queue : cls.priority) = value;
      } else {
        context_.error("L9", place, fmt::format("Junos does not know '{}' here", line[i]),
                       "write queue-num N, no-loss or pfc-priority N");
        return false;
      }
    }
    return true;
  }

  // "101110" in binary, "ef", or several in brackets.
  static std::optional<std::uint8_t> code_point(std::string_view word, std::size_t bits) {
    if (word.size() == bits && word.find_first_not_of("01") == std::string_view::npos) {
      std::uint8_t value = 0;
      for (const char c : word) value = static_cast<std::uint8_t>(value * 2 + (c - '0'));
      return value;
    }
    if (word.find_first_not_of("0123456789") == std::string_view::npos) return std::nullopt;
    return bits == 6 ? dscp_number(word) : std::nullopt;
  }

  bool read_classifier(const Line& line, const std::string& place) {
    const bool dscp = line[2] == "dscp" || line[2] == "dscp-ipv6", pcp = line[2] == "ieee-802.1";
    if (!dscp && !pcp) return false;
    auto& points = (dscp ? dscp_classifiers_ : pcp_classifiers_)[std::string(line[3])];
    if (line[4] == "import") return true;
    const auto at = std::find(line.words.begin(), line.words.end(), "code-points");
    if (line[4] != "forwarding-class" || at == line.words.end()) return false;
    for (auto word = at + 1; word != line.words.end(); ++word) {
      std::string_view point = *word;
      while (point.starts_with('[')) point.remove_prefix(1);
      while (point.ends_with(']')) point.remove_suffix(1);
      if (point.empty()) continue;
      const auto value = code_point(point, dscp ? 6 : 3);
      if (value)
        points.push_back({*value, std::string(line[5]), place});
      else
        context_.error("L9", place, fmt::format("'{}' is no code point", point),
                       dscp ? "write six bits" : "write three bits");
    }
    return true;
  }

  bool read_pause(const Line& line, const std::string& place, Pause& pause) {
    if (pause.place.empty()) pause.place = place;
    if (line.size() == 3) return true;
    const bool dscp = line[4] == "dscp";
    if (line[3] == "pfc-watchdog") return read_watchdog(line, place, pause);
    if (line[3] == "input" && line[4] == "cable-length") {
      const auto metres = number(line[5]);
      if (metres && *metres > 0 && *metres <= 100'000)
        pause.metres = static_cast<double>(*metres);
      else
        context_.error("L6", place, fmt::format("'{}' is no length in metres", line[5]),
                       "write such as cable-length 40");
      pause.metres_place = place;
      return true;
    }
    const auto point = code_point(line[6], dscp ? 6 : 3);
    if (line[5] != "code-point" || (!dscp && line[4] != "ieee-802.1")) return false;
    if (!point) {
      context_.error("L9", place, fmt::format("'{}' is no code point", line[6]),
                     dscp ? "write six bits" : "write three bits");
      return false;
    }
    if (line[3] == "input" && line[7] == "pfc") {
      (dscp ? pause.dscps : pause.pcps).emplace_back(*point, place);
      return true;
    }
    if (line[3] != "output" || line[7] != "flow-control-queue") return line[3] == "input" && line[7] == "xon";
    const auto queue = number_list(line, 8, line.size(), 11);
    if (!queue) return false;
    if (pause.to_queue == nullptr) pause.to_queue = context_.new_map(place, kPriorities);
    context_.map(*pause.to_queue, *point, queue->front(), place, "PFC priority");
    return true;
  }

  bool read_watchdog(const Line& line, const std::string& place, Pause& pause) {
    if (pause.watchdog_place.empty()) pause.watchdog_place = place;
    if (line.size() == 4) return true;
    if (line[4] == "watchdog-action") {
      if (line[5] != "drop" && line[5] != "forward")
        context_.error("L8", place, fmt::format("the watchdog has no action '{}'", line[5]), "write drop or forward");
      return true;
    }
    const auto value = number(line[5]);
    if (!value || *value > 1'000'000) return false;
    if (line[4] == "poll-interval")
      pause.poll = milliseconds(static_cast<std::int64_t>(*value));
    else if (line[4] == "detection")
      pause.detection = *value;
    else if (line[4] == "recovery")
      pause.recovery = milliseconds(static_cast<std::int64_t>(*value));
    else
      return false;
    if (line[4] != "poll-interval") pause.watchdog_place = place;
    return true;
  }

  bool read_drop_profile(const Line& line, const std::string& place) {
    Ecn*& ecn = drop_profiles_[std::string(line[2])];
    if (ecn == nullptr) ecn = context_.new_ecn(place);
    ecn->drops = true;
    ecn->unit = "percent of the queue's buffer";
    const auto fill = std::find(line.words.begin(), line.words.end(), "fill-level");
    const auto drop = std::find(line.words.begin(), line.words.end(), "drop-probability");
    if (fill == line.words.end() && drop == line.words.end()) return false;
    const auto numbers = [&](auto from) {
      const auto begin = static_cast<std::size_t>(from - line.words.begin()) + 1;
      const auto end = static_cast<std::size_t>((from < drop ? drop : line.words.end()) - line.words.begin());
      return from == line.words.end() ? std::nullopt : number_list(line, begin, end, 255);
    };
    const auto fills = numbers(fill), drops = numbers(drop);
    for (const std::uint8_t value : fills.value_or(std::vector<std::uint8_t>())) {
      if (!ecn->kmin) ecn->kmin = value;
      ecn->kmax = value;
      if (value > 100) context_.error("L5", place, "a fill level of more than 100 percent", "write 0 to 100");
    }
    for (const std::uint8_t value : drops.value_or(std::vector<std::uint8_t>())) {
      ecn->percent = value;
      ecn->percent_place = place;
    }
    if (fills && drops && fills->size() != drops->size())
      context_.error("L5", place, "not every fill level has its drop-probability", "write as many of both");
    return true;
  }

  bool read_scheduler(const Line& line, const std::string& place, Scheduler& scheduler) {
    if (scheduler.place.empty()) scheduler.place = place;
    for (std::size_t i = 3; i < line.size(); ++i) {
      const std::string_view word = line[i];
      if (word == "priority") {
        const std::string_view level = line[++i];
        if (level != "strict-high" && level != "high" && level != "low" && level != "medium-high" &&
            level != "medium-low")
          context_.error("L9", place, fmt::format("Junos has no priority '{}'", level), "write strict-high or low");
        if (!scheduler.scheduling) scheduler.scheduling = Scheduling{};
        scheduler.scheduling->strict = level == "strict-high";
        scheduler.place = place;
      } else if (word == "transmit-rate" || word == "shaping-rate") {
        if (!read_rate(line, i, word == "shaping-rate", scheduler)) return false;
        return true;
      } else if (word == "explicit-congestion-notification") {
        scheduler.marks = true;
        scheduler.ecn_place = place;
      } else if (word == "drop-profile-map") {
        scheduler.drop_profile = line.words.back();
        scheduler.drop_place = place;
        return true;
      } else {
        return word == "buffer-size" || word == "excess-rate";
      }
    }
    return true;
  }

  static bool read_rate(const Line& line, std::size_t at, bool most, Scheduler& scheduler) {
    const bool percent = line[at + 1] == "percent";
    const std::uint64_t value = percent ? number(line[at + 2]).value_or(kNone) : 0;
    if (percent && value > 100) return false;
    if (!most) {
      if (!scheduler.scheduling) scheduler.scheduling = Scheduling{};
      if (percent) scheduler.scheduling->weight = static_cast<unsigned>(value);
      return true;
    }
    scheduler.shaper = Shaper{};
    if (percent)
      scheduler.shaper->percent = static_cast<double>(value);
    else
      scheduler.shaper->rate = port_speed(line[at + 1]);
    return percent || scheduler.shaper->rate;
  }

  bool read_shared(const Line& line, const std::string& place) {
    const auto value = number(line.words.back());
    if (line[line.size() - 2] != "percent") return false;
    if (!value || *value > 100) {
      context_.error("L6", place, "a share that is no number from 0 to 100", "write 0 to 100");
      return true;
    }
    if (line[3] != "buffer-partition") return line[3] == "percent" || line[2] == "percent";
    unsigned& sum = partitions_[std::string(line[2])];
    sum += static_cast<unsigned>(*value);
    if (sum > 100)
      context_.error("L6", place, fmt::format("the {} buffer's partitions sum up to {} percent", line[2], sum),
                     "let them be 100");
    if (line[4] == "lossless-headroom" && *value == 0)
      context_.error("L6", place, "no headroom for lossless classes", "give the partition a share");
    return true;
  }

  bool read_binding(const Line& line, const std::string& place) {
    Bound& bound = bound_[std::string(line[2])];
    if (bound.place.empty()) bound.place = place;
    if (line[3] == "scheduler-map") {
      bound.scheduler_map = line[4];
      bound.scheduler_map_place = place;
    } else if (line[3] == "congestion-notification-profile") {
      bound.pause = line[4];
      bound.pause_place = place;
    } else if (line[3] == "forwarding-class-set" && line[5] == "output-traffic-control-profile") {
      bound.scheduler_map = profile_maps_[std::string(line[6])];
      bound.scheduler_map_place = place;
    } else {
      const std::size_t at = line[3] == "unit" ? 5 : 3;
      if (line[at] != "classifiers") return line[at] == "rewrite-rules";
      if (line[at + 1] == "dscp")
        bound.dscp = line[at + 2];
      else if (line[at + 1] == "ieee-802.1")
        bound.pcp = line[at + 2];
      else
        return line[at + 1] == "dscp-ipv6";
      bound.classifier_place = place;
    }
    return true;
  }

  bool read_interface(const Line& line, const std::string& place) {
    if (line[1].find('/') == std::string_view::npos) return !is_about_qos(line);
    Physical& physical = interfaces_[std::string(line[1])];
    if (physical.place.empty()) physical.place = place;
    if (line[2] == "mtu") {
      physical.mtu = number(line[3]);
      physical.mtu_place = place;
    }
    if (line[2] == "speed") physical.speed = port_speed(line[3]);
    if (line[2] == "disable") physical.disabled = true;
    if (line[2] == "ether-options" && line[3] == "flow-control") physical.flow_control = place;
    return true;
  }

  const ForwardingClass* find_class(const std::string& name) const {
    const auto found = classes_.find(name);
    return found == classes_.end() || !found->second.queue || *found->second.queue >= kPriorities ? nullptr
                                                                                                  : &found->second;
  }

  Map* resolve(const std::vector<CodePoint>& points, std::size_t size, std::string_view what) {
    Map* const map = context_.new_map(points.empty() ? context_.path() : points.front().place, size);
    for (const CodePoint& point : points) {
      const ForwardingClass* const cls = find_class(point.cls);
      if (cls != nullptr)
        context_.map(*map, point.point, *cls->queue, point.place, what);
      else if (classes_.count(point.cls) == 0)
        context_.error("L9", point.place, fmt::format("there is no forwarding class '{}'", point.cls),
                       "name one that is there, or add it");
    }
    for (std::size_t from = 0; from < size; ++from) map->to[from] = map->to[from].value_or(0);
    map->has_preset = true;
    return map;
  }

  void check_classes() {
    std::map<std::uint8_t, const ForwardingClass*> by_queue, by_priority;
    for (const auto& [name, cls] : classes_) {
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

  void add_ports();
  void add_pfc(const Bound& bound, Port& port);
  void add_queues(const std::string& map_name, Port& port);

  template <typename Things>
  const typename Things::mapped_type* find(const Things& things, const std::string& name, const std::string& place,
                                           const char* what) {
    if (name.empty()) return nullptr;
    const auto found = things.find(name);
    if (found != things.end()) return &found->second;
    context_.error("L9", place, fmt::format("there is no {} '{}'", what, name), "name one that is there, or add it");
    return nullptr;
  }

  struct Served {
    std::string cls, scheduler, place;
  };

  Context context_;
  Map* queues_;
  std::map<std::string, ForwardingClass> classes_;
  std::map<std::string, std::vector<CodePoint>> dscp_classifiers_, pcp_classifiers_;
  std::map<std::string, Map*> maps_, pcp_maps_;
  std::map<std::string, Pause> pauses_;
  std::map<std::string, Ecn*> drop_profiles_;
  std::map<std::string, Scheduler> schedulers_;
  std::map<std::string, std::vector<Served>> scheduler_maps_;
  std::map<std::string, std::array<Queue, kPriorities>> served_;  // by scheduler map, once its schedulers were found
  std::map<std::string, std::string> profile_maps_;
  std::map<std::string, unsigned> partitions_;
  std::map<std::string, Bound> bound_;
  std::map<std::string, Physical> interfaces_;
};

void Junos::add_queues(const std::string& map_name, Port& port) {
  const auto done = served_.find(map_name);
  if (done != served_.end()) {
    port.queues = done->second;
    return;
  }
  unsigned sum = 0;
  for (const Served& served : scheduler_maps_[map_name]) {
    const Scheduler* const scheduler = find(schedulers_, served.scheduler, served.place, "scheduler");
    if (classes_.count(served.cls) == 0)
      context_.error("L9", served.place, fmt::format("there is no forwarding class '{}'", served.cls),
                     "name one that is there, or add it");
    const ForwardingClass* const cls = find_class(served.cls);
    if (scheduler == nullptr || cls == nullptr) continue;
    Queue& queue = port.queues[*cls->queue];
    queue.place = scheduler->place;
    queue.scheduling = scheduler->scheduling ? *scheduler->scheduling : Scheduling{};
    queue.shaper = scheduler->shaper;
    sum += queue.scheduling->strict ? 0 : queue.scheduling->weight.value_or(0);
    if (sum > 100)
      context_.error("L9", scheduler->place, fmt::format("the transmit rates sum up to {} percent", sum),
                     "let them be 100");
    Ecn& ecn = *context_.new_ecn(scheduler->marks ? scheduler->ecn_place : scheduler->drop_place);
    if (Ecn* const* const profile =
            find(drop_profiles_, scheduler->drop_profile, scheduler->drop_place, "drop profile")) {
      const std::string place = ecn.place;
      ecn = **profile;
      if (!scheduler->marks) ecn.place = place;
    } else if (!scheduler->marks) {
      continue;
    }
    if (!scheduler->marks) ecn.percent_place.clear();
    ecn.marks = scheduler->marks;
    queue.ecn = &ecn;
  }
  served_[map_name] = port.queues;
}

void Junos::add_pfc(const Bound& bound, Port& port) {
  for (const auto& [name, cls] : classes_) {
    if (find_class(name) == nullptr) continue;
    Buffer& buffer = port.buffers[*cls.queue];
    if (buffer.lossless()) continue;
    buffer.kind = cls.lossless ? Buffer::Kind::kLossless : Buffer::Kind::kLossy;
    buffer.place = cls.place == context_.path() ? bound.pause_place : cls.place;
    if (cls.priority) port.on_wire[*cls.queue] = *cls.priority;
  }
  const Pause* const pause = find(pauses_, bound.pause, bound.pause_place, "congestion-notification-profile");
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

void Junos::add_ports() {
  std::set<std::string> paused;  // classifiers of ports with a profile
  for (const auto& [name, bound] : bound_)
    if (!bound.pause.empty()) paused.insert(bound.dscp + "|" + bound.pcp);
  for (const auto& [name, bound] : bound_) {
    const auto found = interfaces_.find(name);
    if (found != interfaces_.end() && found->second.disabled) continue;
    Port port;
    port.name = name;
    port.class_to_queue = queues_;
    if (Map* const* const map = find(maps_, bound.dscp, bound.classifier_place, "classifier"))
      port.dscp_to_class = *map;
    if (Map* const* const map = find(pcp_maps_, bound.pcp, bound.classifier_place, "classifier"))
      port.pcp_to_class = *map;
    if (find(scheduler_maps_, bound.scheduler_map, bound.scheduler_map_place, "scheduler map") != nullptr)
      add_queues(bound.scheduler_map, port);
    port.pfc_place = bound.place;
    if (!bound.pause.empty())
      add_pfc(bound, port);
    else if (paused.count(bound.dscp + "|" + bound.pcp) != 0)
      port.pfc = PrioritySet(0);
    port.mtu_place = bound.place;
    if (found != interfaces_.end()) {
      port.mtu = found->second.mtu;
      port.speed = found->second.speed;
      port.mtu_place = found->second.mtu_place.empty() ? found->second.place : found->second.mtu_place;
      if (!found->second.flow_control.empty() && port.pfc.value_or(0) != 0)
        context_.error("L3", found->second.flow_control, "link pause stops all classes, where PFC is to stop some",
                       "write no-flow-control");
    }
    context_.device().ports.push_back(std::move(port));
  }
  for (const auto& [name, physical] : interfaces_) {
    if (bound_.count(name) != 0 || physical.disabled || physical.mtu.value_or(0) < 9000) continue;
    Port port;
    port.name = name;
    port.mtu = physical.mtu;
    port.mtu_place = physical.mtu_place;
    port.pfc = PrioritySet(0);
    port.pfc_place = physical.place;
    context_.device().ports.push_back(std::move(port));
  }
}

}  // namespace

Result<Device> parse_junos(std::string_view text, const std::string& path, const std::string& name,
                           findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const junos::Statements statements, junos::statements_of(text, path));
  Device device;
  device.name = name;
  device.place = path;
  device.language = "junos";
  for (const Line& line : statements.lines)
    if (line.starts_with("system host-name") && line.size() == 3) device.name = line[2];
  Junos(path, device, report).read(statements.lines);
  return device;
}

}  // namespace tensorlane::lint
