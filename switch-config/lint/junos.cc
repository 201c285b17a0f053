// Juniper Junos of the QFX series: its statements. A forwarding class is its queue; which priority is in its pause
// frames is said apart.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "switch-config/lint/junos_settings.h"
#include "switch-config/lint/junos_statements.h"
#include "switch-config/lint/languages.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace junos {
namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

class Reader {
 public:
  Reader(Settings& settings, Context& context) : context_(context), settings_(settings) {
    const std::string& path = context.path();
    settings_.classes = {{"best-effort", {path, 0, false, {}}}, {"network-control", {path, 7, false, {}}}};
  }

  void read(const std::vector<Line>& lines) {
    for (const Line& line : lines)
      if (line.starts_with("class-of-service code-point-aliases")) read_alias(line);
    for (const Line& line : lines) {
      const bool known = line[0] == "class-of-service" ? read_cos(line, context_.place(line))
                         : line[0] == "interfaces"     ? read_interface(line, context_.place(line))
                         : line[0] == "firewall"       ? !classifies(line)
                                                       : !is_about_qos(line);
      if (!known) context_.unparsed(line);
    }
    add_ranges();
    for (const auto& [name, points] : settings_.drop_points)
      if (points.first != points.second)
        context_.error("L5", settings_.drop_profiles.at(name)->place, "not every fill level has its drop-probability",
                       "write as many of both");
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
    if (part == "congestion-notification-profile")
      return read_pause(line, place, settings_.pauses[std::string(line[2])]);
    if (part == "drop-profiles") return read_drop_profile(line, place);
    if (part == "schedulers") return read_scheduler(line, place, settings_.schedulers[std::string(line[2])]);
    if (part == "scheduler-maps") {
      if (line[3] != "forwarding-class" || line[5] != "scheduler") return false;
      settings_.scheduler_maps[std::string(line[2])].push_back({std::string(line[4]), std::string(line[6]), place});
      return true;
    }
    if (part == "traffic-control-profiles") {
      if (line[3] == "scheduler-map") settings_.profile_maps[std::string(line[2])] = line[4];
      return line[3] == "scheduler-map" || line[3] == "guaranteed-rate" || line[3] == "shaping-rate";
    }
    if (part == "code-point-aliases" || part == "forwarding-class-sets" || part == "rewrite-rules" ||
        part == "host-outbound-traffic")
      return true;
    if (part == "shared-buffer") return read_shared(line, place);
    if (part == "interfaces") return read_binding(line, place);
    return false;
  }

  bool read_class(const Line& line, const std::string& place) {
    if (line[2] == "queue") {  // queue 3 bulk
      const auto queue = small_number(line[3], 11);
      if (!queue) return false;
      settings_.classes[std::string(line[4])].queue = *queue;
      settings_.classes[std::string(line[4])].place = place;
      return true;
    }
    if (line[2] != "class") return false;
    ForwardingClass& cls = settings_.classes[std::string(line[3])];
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

  void read_alias(const Line& line) {
    const bool dscp = line[2] == "dscp" || line[2] == "dscp-ipv6";
    const auto value = code_point(line[4], dscp ? 6 : 3);
    if (!value || (!dscp && line[2] != "ieee-802.1")) return context_.unparsed(line);
    (dscp ? settings_.dscp_aliases : settings_.pcp_aliases)[std::string(line[3])] = *value;
  }

  // "101110" in binary, "ef", or the configuration's own name for one.
  std::optional<std::uint8_t> code_point(std::string_view word, std::size_t bits) const {
    const auto& aliases = bits == 6 ? settings_.dscp_aliases : settings_.pcp_aliases;
    if (const auto alias = aliases.find(std::string(word)); alias != aliases.end()) return alias->second;
    if (word.size() == bits && word.find_first_not_of("01") == std::string_view::npos) {
      std::uint8_t value = 0;
      for (const char c : word) value = static_cast<std::uint8_t>(value * 2 + (c - '0'));
      return value;
    }
    if (word.find_first_not_of("0123456789") == std::string_view::npos) return std::nullopt;
    if (word == "nc1" || word == "nc2") return static_cast<std::uint8_t>((word == "nc1" ? 6u : 7u) << (bits - 3));
    if (bits == 6 && word == "be1") return std::uint8_t{1};
    if (bits == 6) return dscp_number(word);
    // The switch's own names, from 0 on; of DSCPs it has be1, too.
    constexpr std::string_view kNames[] = {"be", "be1", "af11", "af12", "ef", "ef1"};
    const auto* const name = std::find(std::begin(kNames), std::end(kNames), word);
    if (name == std::end(kNames)) return std::nullopt;
    return static_cast<std::uint8_t>(name - kNames);
  }

  bool read_classifier(const Line& line, const std::string& place) {
    const bool dscp = line[2] == "dscp" || line[2] == "dscp-ipv6", pcp = line[2] == "ieee-802.1";
    if (!dscp && !pcp) return false;
    auto& points = (dscp ? settings_.dscp_classifiers : settings_.pcp_classifiers)[std::string(line[3])];
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
    if (line[3] != "output" || line[7] != "flow-control-queue")
      return line[3] == "input" && (line[7] == "xon" || line[7] == "mru");
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
    Ecn*& ecn = settings_.drop_profiles[std::string(line[2])];
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
    auto& points = settings_.drop_points[std::string(line[2])];
    points.first += fills ? fills->size() : 0;
    points.second += drops ? drops->size() : 0;
    return true;
  }

  bool read_scheduler(const Line& line, const std::string& place, Scheduler& scheduler) {
    if (scheduler.place.empty()) scheduler.place = place;
    for (std::size_t i = 3; i < line.size(); ++i) {
      const std::string_view word = line[i];
      if (word == "priority") {
        const std::string_view level = line[++i];
        if (level != "strict-high" && level != "high" && level != "low" && level != "medium-high" &&
            level != "medium-low" && level != "low-latency")
          context_.error("L9", place, fmt::format("Junos has no priority '{}'", level), "write strict-high or low");
        if (!scheduler.scheduling) scheduler.scheduling = Scheduling{};
        scheduler.scheduling->strict = level == "strict-high" || level == "low-latency";
        scheduler.place = place;
      } else if (word == "transmit-rate" || word == "shaping-rate") {
        return read_rate(line, i, place, scheduler);
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

  // The word `at` is transmit-rate or shaping-rate.
  bool read_rate(const Line& line, std::size_t at, const std::string& place, Scheduler& scheduler) {
    const bool percent = line[at + 1] == "percent";
    const std::uint64_t value = percent ? number(line[at + 2]).value_or(kNone) : 0;
    if (percent && value == kNone) return false;
    if (percent && value > 100) {
      context_.error("L9", place, fmt::format("a {} of {} percent", line[at], value), "write 100 percent at most");
      return true;
    }
    if (line[at] == "transmit-rate") {
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
    if (line[line.size() - 2] == "dynamic-threshold") return value.has_value();
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
    if (line[4] == "lossless-headroom" && *value == 0) settings_.no_headroom = place;
    return true;
  }

  bool read_binding(const Line& line, const std::string& place) {
    Bound& bound = settings_.bound[std::string(line[2])];
    if (bound.place.empty()) bound.place = place;
    if (line[3] == "scheduler-map") {
      bound.scheduler_maps.push_back({std::string(line[4]), place});
    } else if (line[3] == "congestion-notification-profile") {
      bound.pause = line[4];
      bound.pause_place = place;
    } else if (line[3] == "forwarding-class-set" && line[5] == "output-traffic-control-profile") {
      bound.profiles.push_back({std::string(line[6]), place});
    } else if (line[3] == "output-traffic-control-profile") {
      bound.profiles.push_back({std::string(line[4]), place});
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
    if (line[1] == "interface-range") return read_range(line, place);
    const bool aggregated = line[1].starts_with("ae") && number(line[1].substr(2)).has_value();
    if (line[1].find('/') == std::string_view::npos && !aggregated) return !is_about_qos(line);
    Physical& physical = settings_.interfaces[std::string(line[1])];
    if (physical.place.empty()) physical.place = place;
    read_physical(line, 2, place, physical);
    return true;
  }

  static void read_physical(const Line& line, std::size_t at, const std::string& place, Physical& physical) {
    if (line[at] == "mtu") {
      physical.mtu = number(line[at + 1]);
      physical.mtu_place = place;
    }
    if (line[at] == "speed") physical.speed = port_speed(line[at + 1]);
    if (line[at] == "disable") physical.disabled = true;
    if (!line[at].ends_with("ether-options")) return;
    if (line[at + 1] == "flow-control") physical.flow_control = place;
    physical.member |= line[at + 1] == "802.3ad";
  }

  // "member-range et-0/0/0 to et-0/0/31", "member et-0/0/40", and what these have in common.
  bool read_range(const Line& line, const std::string& place) {
    Range& range = ranges_[std::string(line[2])];
    if (line[3] == "member-range" || line[3] == "member") {
      std::string text(line[4]);
      std::erase(text, '"');
      const std::size_t last = line[6].rfind('/');
      if (line[5] == "to" && last != std::string_view::npos) text += fmt::format("-{}", line[6].substr(last + 1));
      const auto names = port_names(text);
      if (!names) return false;
      range.members.insert(range.members.end(), names->begin(), names->end());
      return true;
    }
    if (range.common.place.empty()) range.common.place = place;
    read_physical(line, 3, place, range.common);
    return true;
  }

  void add_ranges() {
    for (const auto& [name, range] : ranges_) {
      for (const std::string& member : range.members) {
        Physical& physical = settings_.interfaces[member];
        if (physical.place.empty()) physical.place = range.common.place;
        if (!physical.mtu && range.common.mtu) {
          physical.mtu = range.common.mtu;
          physical.mtu_place = fmt::format("{} | {}", range.common.mtu_place, member);
        }
        if (!physical.speed) physical.speed = range.common.speed;
        if (physical.flow_control.empty()) physical.flow_control = range.common.flow_control;
        physical.disabled |= range.common.disabled;
        physical.member |= range.common.member;
      }
    }
  }

  struct Range {
    std::vector<std::string> members;
    Physical common;
  };

  Context& context_;
  Settings& settings_;
  std::map<std::string, unsigned> partitions_;
  std::map<std::string, Range> ranges_;
};

}  // namespace
}  // namespace junos

Result<Device> parse_junos(std::string_view text, const std::string& path, const std::string& name,
                           findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const junos::Statements statements, junos::statements_of(text, path));
  Device device = new_device(name, path, "junos");
  for (const Line& line : statements.lines)
    if (line.starts_with("system host-name") && line.size() == 3) device.name = line[2];
  device.strict_first = true;
  Context context(path, device, report);
  junos::Settings settings;
  junos::Reader(settings, context).read(statements.lines);
  junos::add_ports(settings, context);
  return device;
}

}  // namespace tensorlane::lint
