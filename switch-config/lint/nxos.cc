// Cisco NX-OS: running-config of Nexus 9000. A qos-group is at once the traffic class, the queue and what PFC stops;
// which priority is in its pause frames is said apart.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "switch-config/lint/languages.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

struct Match {
  std::vector<std::uint8_t> dscps, pcps;
  std::vector<std::string> dscp_places, pcp_places;
  std::optional<std::uint8_t> group;  // class maps of queues
};

// What a network-qos policy says of a group.
struct Pause {
  std::string place;
  std::uint8_t priority = 0;
};

struct Input {  // a policy of type qos
  Map* dscps = nullptr;
  Map* pcps = nullptr;
};

class Nxos {
 public:
  Nxos(const std::string& path, Device& device, findings::Report& report) : context_(path, device, report) {
    device.strict_first = true;  // check_levels
    queues_ = context_.new_identity(path + ": qos-group = queue");
  }

  void read(const std::vector<Block>& blocks) {
    for (const Block& block : blocks)
      if (block.line[0] == "class-map") read_class_map(block);
    for (const Block& block : blocks)
      if (block.line[0] == "policy-map") read_policy_map(block);
    for (const Block& block : blocks)
      if (block.line.starts_with("system qos")) read_system(block);
    for (const Block& block : blocks) read_top(block);
    finish();
  }

 private:
  // "class-map type qos match-any NAME": the type is qos where none is given, and the name comes last.
  static std::string_view type_of(const Line& line) { return line[1] == "type" ? line[2] : "qos"; }
  static std::string name_of(const Line& line) {
    const std::size_t options = line.words.back() == "no-stats" ? 1 : 0;
    return std::string(line[line.size() - 1 - options]);
  }

  static bool built_in(std::string_view name) { return name.starts_with("default-") || name.starts_with("system-"); }

  // Of "c-8q-nq6", "c-out-8q-q6", "c-out-q3", "c-in-8q-q-default"; else of a class map's qos-group.
  std::optional<std::uint8_t> group_of(const std::string& cls) const {
    const auto found = matches_.find(cls);
    if (found != matches_.end() && found->second.group) return found->second.group;
    if (!cls.starts_with("c-") && cls != "class-default") return std::nullopt;
    if (cls.ends_with("default")) return 0;
    return small_number(std::string_view(cls).substr(cls.size() - 1), 7);
  }

  void read_class_map(const Block& block) {
    if (type_of(block.line) == "control-plane") return;  // of the switch's own CPU
    Match& match = matches_[name_of(block.line)];
    for (const Block& child : block.children)
      if (!read_match(child.line, context_.place(child.line, block.line.text), match)) context_.unparsed(child.line);
  }

  bool read_match(const Line& line, const std::string& place, Match& match) {
    if (line[0] != "match") return line[0] == "description";
    if (line[1] == "qos-group") {
      match.group = small_number(line[2], 7);
      return match.group.has_value();
    }
    if (line[1] == "cos") {
      const auto list = number_list(line, 2, line.size(), 7);
      if (!list) return bad_number(place, "0 to 7");
      match.pcps.insert(match.pcps.end(), list->begin(), list->end());
      match.pcp_places.resize(match.pcps.size(), place);
      return true;
    }
    if (line[1] != "dscp") return false;
    for (std::size_t i = 2; i < line.size(); ++i) {
      std::string_view list = line[i];
      while (!list.empty()) {
        const std::string_view word = list.substr(0, list.find(','));
        list.remove_prefix(std::min(word.size() + 1, list.size()));
        if (const auto named = dscp_number(word)) {
          match.dscps.push_back(*named);
        } else {
          const auto range = number_list({0, 0, word, {word}}, 0, 1, 63);
          if (!range && !word.empty()) return bad_number(place, "0 to 63");
          if (range) match.dscps.insert(match.dscps.end(), range->begin(), range->end());
        }
        match.dscp_places.resize(match.dscps.size(), place);
      }
    }
    return true;
  }

  bool bad_number(const std::string& place, const char* range) {
    context_.error("L9", place, "a code point that does not exist", fmt::format("write {}", range));
    return false;
  }

  void read_policy_map(const Block& block) {
    const std::string_view type = type_of(block.line);
    const std::string name = name_of(block.line);
    if (type == "qos")
      read_input(block, inputs_[name]);
    else if (type == "network-qos")
      read_network(block, networks_[name]);
    else if (type == "queuing")
      read_queuing(block, queuings_[name]);
    else if (type != "control-plane")
      context_.unparsed(block.line);
  }

  // The first class that matches counts, but one code point in two classes is a mistake.
  void read_input(const Block& block, Input& input) {
    const std::string place = context_.place(block.line);
    input.dscps = context_.new_map(place, 64);
    input.pcps = context_.new_map(place, kPriorities);
    bool any_pcp = false;
    for (const Block& cls : block.children) {
      if (cls.line[0] != "class") continue;
      const auto group = group_set(cls);
      const std::string name = name_of(cls.line);
      const auto match = matches_.find(name);
      if (name == "class-default") continue;
      if (match == matches_.end()) {
        context_.error("L9", context_.place(cls.line, block.line.text), fmt::format("there is no class-map '{}'", name),
                       "name one that is there, or add it");
        continue;
      }
      if (!group) continue;
      for (std::size_t i = 0; i < match->second.dscps.size(); ++i)
        map_once(*input.dscps, match->second.dscps[i], *group, match->second.dscp_places[i], "DSCP");
      for (std::size_t i = 0; i < match->second.pcps.size(); ++i)
        map_once(*input.pcps, match->second.pcps[i], *group, match->second.pcp_places[i], "CoS");
      any_pcp |= !match->second.pcps.empty();
    }
    for (auto& to : input.dscps->to) to = to.value_or(0);
    for (std::size_t pcp = 0; pcp < kPriorities; ++pcp) input.pcps->to[pcp] = input.pcps->to[pcp].value_or(0);
    input.dscps->has_preset = input.pcps->has_preset = true;
    if (!any_pcp) input.pcps = nullptr;
  }

  void map_once(Map& map, std::size_t from, std::uint8_t group, const std::string& place, std::string_view what) {
    const bool first = !map.said[from];
    const auto before = map.to[from];
    const std::string kept = first ? place : map.places[from];
    context_.map(map, from, group, place, what);
    if (!first) map.to[from] = before;
    map.places[from] = kept;
  }

  std::optional<std::uint8_t> group_set(const Block& cls) {
    std::optional<std::uint8_t> group;
    for (const Block& child : cls.children) {
      const Line& line = child.line;
      if (line.starts_with("set qos-group")) {
        group = small_number(line[2], 7);
        if (!group)
          context_.error("L9", context_.place(line, cls.line.text), "a qos-group that does not exist", "write 0 to 7");
      } else if (line[0] != "set" && line[0] != "police") {
        context_.unparsed(line);
      }
    }
    return group;
  }

  // Of a class of a policy of queues; what has none is said.
  std::optional<std::uint8_t> group_of_class(const Line& cls, const Line& policy) {
    const std::string name = name_of(cls);
    const auto group = group_of(name);
    if (group && cls[0] == "class") return group;
    if (cls[0] != "class" || matches_.count(name) != 0)
      context_.unparsed(cls);
    else
      context_.error("L9", context_.place(cls, policy.text), fmt::format("there is no class-map '{}'", name),
                     "name one that is there or that the switch has, such as c-8q-nq3 or c-out-8q-q3");
    return std::nullopt;
  }

  void read_network(const Block& block, std::map<std::uint8_t, Pause>& pauses) {
    std::vector<ClassMtu> mtus;
    for (const Block& cls : block.children) {
      const auto group = group_of_class(cls.line, block.line);
      if (!group) continue;
      const std::string within = fmt::format("{} | {}", block.line.text, cls.line.text);
      std::optional<std::uint64_t> mtu;
      std::string mtu_place = context_.place(cls.line, block.line.text);
      for (const Block& child : cls.children) {
        const Line& line = child.line;
        if (line[0] == "mtu") {
          mtu = number(line[1]);
          mtu_place = context_.place(line, within);
        } else if (line[0] == "pause") {
          read_pause(line, context_.place(line, within), *group, pauses);
        } else if (line[0] != "congestion-control") {
          context_.unparsed(line);
        }
      }
      mtus.push_back({*group, mtu, mtu_place});
    }
    check_mtus(mtus, pauses);
  }

  struct ClassMtu {
    std::uint8_t group;
    std::optional<std::uint64_t> mtu;
    std::string place;
  };

  void check_mtus(const std::vector<ClassMtu>& mtus, const std::map<std::uint8_t, Pause>& pauses) {
    constexpr std::uint64_t kLeast = 4158, kDefault = 1500;
    const bool jumbo = std::any_of(mtus.begin(), mtus.end(), [](const auto& m) { return m.mtu.value_or(0) >= kLeast; });
    for (const auto& [group, mtu, place] : mtus) {
      if (pauses.count(group) == 0 || mtu.value_or(jumbo ? kDefault : kLeast) >= kLeast) continue;
      context_.warning("L7", place,
                       fmt::format("{} bytes{} are too few for RoCE packets of 4096 and their headers",
                                   mtu.value_or(kDefault), mtu ? "" : ", what a class has that says none,"),
                       "write mtu 9216");
    }
  }

  void read_pause(const Line& line, const std::string& place, std::uint8_t group,
                  std::map<std::uint8_t, Pause>& pauses) {
    const auto cos = std::find(line.words.begin(), line.words.end(), "pfc-cos");
    const auto list = number_list(line, static_cast<std::size_t>(cos - line.words.begin()) + 1, line.size(), 7);
    if (cos == line.words.end() && line[1] == "no-drop") {
      pauses[group] = {place, group};
    } else if (!list || list->size() != 1) {
      context_.error("L9", place, "pause needs one pfc-cos from 0 to 7", "write pause pfc-cos N");
    } else {
      for (const auto& [other, pause] : pauses)
        if (other != group && pause.priority == list->front())
          context_.error("L2", place, fmt::format("groups {} and {} pause the same priority", other, group),
                         "give each a pfc-cos of its own");
      pauses[group] = {place, list->front()};
    }
  }

  void read_queuing(const Block& block, std::array<Queue, kPriorities>& queues) {
    unsigned sum = 0;
    for (const Block& cls : block.children) {
      const auto group = group_of_class(cls.line, block.line);
      if (!group) continue;
      const std::string within = fmt::format("{} | {}", block.line.text, cls.line.text);
      Queue& queue = queues[*group];
      queue.place = context_.place(cls.line, block.line.text);
      queue.of_notifications |= names_notifications(name_of(cls.line));
      for (const Block& child : cls.children)
        if (!read_queue(child.line, context_.place(child.line, within), queue)) context_.unparsed(child.line);
      if (queue.scheduling) sum += queue.scheduling->weight.value_or(0);
    }
    if (sum > 100)
      context_.error("L9", context_.place(block.line), fmt::format("the bandwidths sum up to {} percent", sum),
                     "let them be 100");
    check_levels(queues);
  }

  // Strict groups are the highest ones, without a gap, in the order of their levels.
  void check_levels(const std::array<Queue, kPriorities>& queues) {
    unsigned expected = 1;
    bool weighted = false;
    for (std::size_t q = kPriorities; q-- > 0;) {
      const auto& scheduling = queues[q].scheduling;
      if (!scheduling) continue;
      if (!scheduling->strict) {
        weighted = true;
        continue;
      }
      if (weighted)
        context_.error("L4", queues[q].place, fmt::format("group {} is strict and below one that is not", q),
                       "let strict groups be the highest, without a gap");
      else if (scheduling->level && *scheduling->level != expected)
        context_.error(
            "L4", queues[q].place,
            fmt::format("group {} has priority level {} where {} is its turn", q, *scheduling->level, expected),
            "count levels from 1 at the highest group");
      ++expected;
    }
  }

  bool read_queue(const Line& line, const std::string& place, Queue& queue) {
    if (line[0] == "priority") {
      queue.scheduling = Scheduling{.strict = true};
      if (line[1] != "level") return line.size() == 1;
      if (const auto level = small_number(line[2], 8); level && *level > 0)
        queue.scheduling->level = *level;
      else
        context_.error("L9", place, "priority levels are 1 to 8", "write one of them");
      return true;
    }
    if (line[0] == "bandwidth") {
      const auto percent = small_number(line.words.back(), 100);
      queue.scheduling = Scheduling{};
      if (percent)
        queue.scheduling->weight = *percent;
      else
        context_.error("L9", place, "a share that is no number from 0 to 100", "write 0 to 100");
      return true;
    }
    if (line[0] == "random-detect") return read_ecn(line, place, queue);
    if (line[0] == "shape") return read_shaper(line, queue);
    if (line[0] == "pause") return read_buffer(line, place);
    return line.starts_with("queue-limit") || line.starts_with("no ");
  }

  // "shape min 0 gbps max 40 gbps", "shape percent 40" and others.
  static bool read_shaper(const Line& line, Queue& queue) {
    const auto most = std::find(line.words.begin(), line.words.end(), "max");
    const auto at = most == line.words.end() ? 1 : static_cast<std::size_t>(most - line.words.begin()) + 1;
    Shaper shaper;
    const auto value = number(line[at] == "percent" ? line[at + 1] : line[at]);
    if (!value || *value > 10'000'000'000ull) return false;
    const std::string_view unit = line[at + 1];
    if (line[at] == "percent")
      shaper.percent = static_cast<double>(*value);
    else if (unit == "gbps")
      shaper.rate = BitsPerSecond(*value * 1'000'000'000 % 10'000'000'000'000ull);
    else if (unit == "mbps")
      shaper.rate = BitsPerSecond(*value * 1'000'000);
    else if (unit == "kbps")
      shaper.rate = BitsPerSecond(*value * 1000);
    else if (unit == "bps")
      shaper.rate = BitsPerSecond(*value);
    else
      return false;
    queue.shaper = shaper;
    return true;
  }

  bool read_buffer(const Line& line, const std::string& place) {
    std::map<std::string_view, std::uint64_t> sizes;
    for (std::size_t i = 1; i + 1 < line.size(); i += 2)
      if (const auto value = number(line[i + 1])) sizes[line[i]] = *value;
    if (sizes.count("buffer-size") == 0) return line[1] == "priority-group";
    const auto size = sizes["buffer-size"], pause = sizes["pause-threshold"], resume = sizes["resume-threshold"];
    if (pause >= size || resume > pause)
      context_.error("L6", place, "the peer is stopped or let go where no buffer is left for what is on the cable",
                     "let resume-threshold <= pause-threshold < buffer-size");
    return true;
  }

  bool read_ecn(const Line& line, const std::string& place, Queue& queue) {
    Ecn& ecn = *context_.new_ecn(place);
    ecn.drops = true;
    for (std::size_t i = 1; i < line.size(); ++i) {
      const bool low = line[i] == "minimum-threshold", high = line[i] == "maximum-threshold";
      if (low || high) {
        const std::string_view unit = line[i + 2];
        const std::uint64_t factor = unit == "kbytes" ? 1000 : unit == "mbytes" ? 1'000'000 : 1;
        if (const auto value = number(line[i + 1]); value && *value < 1'000'000'000'000ull)
          (low ? ecn.kmin : ecn.kmax) = *value * factor;
        if (unit == "packets" || unit == "us" || unit == "ms") ecn.unit = "units";
      }
      if (line[i] == "drop-probability")
        if (const auto percent = small_number(line[i + 1], 255)) ecn.percent = *percent;
      ecn.marks |= line[i] == "ecn";
    }
    queue.ecn = &ecn;
    return true;
  }

  void read_system(const Block& block) {
    for (const Block& child : block.children)
      if (!read_policy(child.line, block, system_)) context_.unparsed(child.line);
  }

  struct Policies {
    std::string input, network, output;
    std::string place;
  };

  bool read_policy(const Line& line, const Block& section, Policies& policies) {
    if (line[0] != "service-policy") return !is_about_qos(line);
    const std::string_view type = type_of(line);
    const std::string name = name_of(line);
    const bool output = std::find(line.words.begin(), line.words.end(), "output") != line.words.end();
    bool known = built_in(name);
    if (type == "qos") {
      known |= inputs_.count(name) != 0;
      if (!output) policies.input = name;
    } else if (type == "network-qos") {
      known |= networks_.count(name) != 0;
      policies.network = name;
    } else if (type == "queuing") {
      known |= queuings_.count(name) != 0;
      if (output) policies.output = name;
    } else {
      return false;
    }
    policies.place = context_.place(line, section.line.text);
    if (!known)
      context_.error("L9", policies.place, fmt::format("there is no policy-map '{}' of this type", name),
                     "name one that is there, or add it");
    return true;
  }

  void read_top(const Block& block) {
    const Line& line = block.line;
    if (line[0] == "interface") return read_interface(block);
    if (line[0] == "class-map" || line[0] == "policy-map" || line.starts_with("system qos")) return;
    if (line[0] == "hostname" || line[0] == "switchname" || line[0] == "feature") return;
    if (line[0] == "priority-flow-control") return read_watchdog(line);
    if (line.starts_with("ip access-list") || line.starts_with("ipv6 access-list")) return;  // they do not mark
    report(block);
  }

  void report(const Block& block) {
    if (is_about_qos(block.line)) context_.unparsed(block.line);
    for (const Block& child : block.children) report(child);
  }

  void read_watchdog(const Line& line) {
    const std::string place = context_.place(line);
    if (line[1] == "watch-dog-interval") {
      if (line[2] == "off") off_ = place;
      watched_ |= line[2] == "on";
      return;
    }
    if (line.starts_with("priority-flow-control watch-dog interval")) {
      const auto time = duration(line[3], milliseconds(1));
      if (!time) return context_.unparsed(line);
      context_.device().watchdog_poll = time;
      context_.device().watchdog_poll_place = place;
      return;
    }
    const auto polls = small_number(line.words.back(), 255);
    if (line.starts_with("priority-flow-control watch-dog shutdown-multiplier") && polls)
      detection_polls_ = *polls;
    else if (line.starts_with("priority-flow-control auto-restore multiplier") && polls)
      restoration_polls_ = *polls;
    else if (!line.starts_with("priority-flow-control watch-dog") && line[1] != "auto-restore" &&
             line[1] != "fixed-restore")
      context_.unparsed(line);
  }

  void read_interface(const Block& block) {
    const auto names = port_names(block.line.text.substr(std::min<std::size_t>(10, block.line.text.size())));
    const bool aggregated = names && names->front().starts_with("port-channel");
    if (!names || (!aggregated && !names->front().starts_with("Eth"))) return report(block);
    Port port;
    Policies own = system_;
    own.place.clear();
    std::string mode, flow_control;
    bool shut = false, member = aggregated;
    for (const Block& child : block.children) {
      const Line& line = child.line;
      const std::string place = context_.place(line, block.line.text);
      if (line[0] == "mtu") {
        port.mtu = number(line[1]);
        port.mtu_place = place;
      } else if (line[0] == "speed") {
        port.speed = port_speed(line[1]);
      } else if (line[0] == "shutdown") {
        shut = true;
      } else if (line[0] == "channel-group") {
        member = true;
      } else if (line.starts_with("priority-flow-control mode")) {
        mode = line[2];
        port.pfc_place = place;
      } else if (line.starts_with("priority-flow-control watch-dog-interval")) {
        if (line[2] == "on") port.watchdog = Watchdog{place, {}, {}};
      } else if (line[0] == "flowcontrol" && line.words.back() == "on") {
        flow_control = place;
      } else if (!read_policy(line, block, own)) {
        context_.unparsed(line);
      }
    }
    // QoS of an aggregated interface is said of it or of its members.
    if (shut || (member && mode.empty() && own.place.empty())) return;
    if (mode == "on" && !flow_control.empty())
      context_.error("L3", flow_control, "link pause stops all classes, where PFC is to stop some",
                     "write flowcontrol off");
    add_ports(*names, block, own, mode, port);
  }

  static bool enters(const Map* map, std::uint8_t group) {
    return map != nullptr && std::find(map->to.begin(), map->to.end(), group) != map->to.end();
  }

  void add_ports(const std::vector<std::string>& names, const Block& block, const Policies& own,
                 const std::string& mode, Port& port) {
    Device& device = context_.device();
    const std::string header = context_.place(block.line);
    if (port.mtu_place.empty()) port.mtu_place = header;
    if (port.pfc_place.empty()) port.pfc_place = header;
    device.has_watchdogs |= port.watchdog.has_value();
    const bool classifies = !own.input.empty();
    if (const auto found = inputs_.find(own.input); found != inputs_.end()) {
      port.dscp_to_class = found->second.dscps;
      port.pcp_to_class = found->second.pcps;
    }
    port.class_to_queue = queues_;
    if (const auto found = queuings_.find(own.output); found != queuings_.end()) port.queues = found->second;
    const auto pauses = networks_.find(system_.network);
    if (pauses != networks_.end()) {
      PrioritySet set = 0;
      for (const auto& [group, pause] : pauses->second) {
        set = static_cast<PrioritySet>(set | 1u << group);
        port.on_wire[group] = pause.priority;
        // Where nothing enters the group, it is not the port's.
        if (mode != "on" && port.dscp_to_class != nullptr && !enters(port.dscp_to_class, group) &&
            !enters(port.pcp_to_class, group))
          continue;
        port.buffers[group].kind = Buffer::Kind::kLossless;
        port.buffers[group].place = pause.place;
      }
      if (mode == "on")
        port.pfc = set;
      else if (mode == "off")
        port.pfc = PrioritySet(0);
    }
    if (mode == "on" && port.pfc.value_or(0) == 0) {
      port.pfc = PrioritySet(0);
      context_.warning("L3", port.pfc_place, "PFC is on, but no network-qos policy of the system pauses a class",
                       "write system qos, service-policy type network-qos NAME");
    }
    if (mode == "on") on_.insert(own.input);
    if (mode == "on" && !classifies && !inputs_.empty())
      context_.warning("L1", header, "PFC is on, but no policy of type qos leads traffic to what it pauses",
                       "write service-policy type qos input NAME");
    for (const std::string& name : names) {
      port.name = name;
      if (mode.empty() && (classifies || port.mtu.value_or(0) >= 9000))
        silent_.emplace_back(device.ports.size(), own.input);
      device.ports.push_back(port);
      if (names.size() == 1) continue;
      device.ports.back().pfc_place += " | " + name;
      device.ports.back().mtu_place += " | " + name;
    }
  }

  // Ports that say nothing of PFC agree on it with their peers, which others that classify like them do not rely on. An
  // uplink that classifies nothing is none of them.
  void finish() {
    Device& device = context_.device();
    for (const auto& [i, input] : silent_)
      if (on_.count(input) != 0)
        context_.warning("L3", device.ports[i].pfc_place,
                         fmt::format("{} says nothing of PFC and asks its peer, while others like it have it on",
                                     device.ports[i].name),
                         "write priority-flow-control mode on, or off");
    const Duration poll = device.watchdog_poll.value_or(milliseconds(100));
    for (Port& port : device.ports) {
      if (!port.watchdog) continue;
      if (detection_polls_) port.watchdog->detection = poll * *detection_polls_;
      if (restoration_polls_) port.watchdog->restoration = poll * *restoration_polls_;
    }
    if (!off_.empty() && device.has_watchdogs)
      context_.error("L8", off_, "the watchdog is off on the whole switch, whatever ports say", "write on");
    else if (!watched_ && device.has_watchdogs)
      context_.add("L8", findings::Severity::kNote, context_.path(),
                   "ports have a watchdog, but the switch has none: some releases need both",
                   "write priority-flow-control watch-dog-interval on outside of interfaces, too");
  }

  Context context_;
  Map* queues_;
  std::map<std::string, Match, std::less<>> matches_;
  std::map<std::string, Input, std::less<>> inputs_;
  std::map<std::string, std::map<std::uint8_t, Pause>, std::less<>> networks_;
  std::map<std::string, std::array<Queue, kPriorities>, std::less<>> queuings_;
  Policies system_;
  std::string off_;
  bool watched_ = false;                                             // for the whole switch
  std::optional<std::int64_t> detection_polls_, restoration_polls_;  // of the watchdog
  std::set<std::string> on_;                                         // the input policies of ports whose PFC is on
  std::vector<std::pair<std::size_t, std::string>> silent_;          // ports that say nothing of PFC, with theirs
};

}  // namespace

Result<Device> parse_nxos(std::string_view text, const std::string& path, const std::string& name,
                          findings::Report& report) {
  TL_ASSIGN_OR_RETURN(std::vector<Line> lines, lines_of(text, path, "!"));
  Device device = new_device(name, path, "nxos");
  for (const Line& line : lines)
    if (line.indent == 0 && (line[0] == "hostname" || line[0] == "switchname") && line.size() == 2)
      device.name = line[1];
  Nxos(path, device, report).read(blocks_of(std::move(lines)));
  return device;
}

}  // namespace tensorlane::lint
