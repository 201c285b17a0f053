// Arista EOS: running-config.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "switch-config/lint/languages.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

// What a profile or an interface says of a queue.
struct QueueSettings {
  std::string place;
  bool strict = false, weighted = false;
  std::string weighted_place;
  std::optional<unsigned> percent;
  std::optional<Shaper> shaper;
  const Ecn* ecn = nullptr;
};

// Marks that a class-map of type qos names.
struct Match {
  std::vector<std::uint8_t> dscps, pcps;
};

// What a profile says of a port, or an interface of itself: the interface's words count.
struct Settings {
  std::optional<bool> pfc_on;
  PrioritySet no_drop = 0;
  std::string pfc_place;
  std::string trust, trust_place;
  std::string policy, policy_place;  // which classifies in the place of trust
  std::map<std::size_t, std::string> no_drop_places;
  std::optional<Watchdog> watchdog;
  bool no_watchdog = false;
  std::map<std::size_t, QueueSettings> queues;
};

class Eos {
 public:
  Eos(const std::string& path, Device& device, findings::Report& report) : context_(path, device, report) {
    dscps_ = context_.new_map(path + ": qos map dscp", 64);
    pcps_ = context_.new_map(path + ": qos map cos", kPriorities);
    queues_ = context_.new_identity(path + ": qos map traffic-class");
    // The factory's maps.
    for (std::size_t dscp = 0; dscp < 64; ++dscp) dscps_->to[dscp] = factory_class(dscp / 8);
    for (std::size_t pcp = 0; pcp < kPriorities; ++pcp) pcps_->to[pcp] = factory_class(pcp);
    dscps_->has_preset = pcps_->has_preset = true;
  }

  void read(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) read_profile(block);
    for (const Block& block : blocks)
      if (block.line.starts_with("qos map") && !read_map(block.line)) context_.unparsed(block.line);
    for (const Block& block : blocks)
      if (block.line.starts_with("class-map type qos")) read_class_map(block);
    for (const Block& block : blocks)
      if (block.line.starts_with("policy-map type") && block.line[2].starts_with("q")) read_policy(block);
    for (const Block& block : blocks)
      if (!read_top(block)) context_.unparsed(block.line);
    check_times();
  }

 private:
  static std::uint8_t factory_class(std::size_t priority) {
    return static_cast<std::uint8_t>(priority == 0 ? 1 : priority == 1 ? 0 : priority);
  }

  void read_profile(const Block& block) {
    if (!block.line.starts_with("qos profile")) return;
    Settings& profile = profiles_[std::string(block.line[2])];
    read_settings(block, profile);
  }

  void read_class_map(const Block& block) {
    Match& match = matches_[std::string(block.line.words.back())];
    for (const Block& child : block.children) {
      const bool dscp = child.line[1] == "dscp";
      auto list = number_list(child.line, 2, child.line.size(), dscp ? 63 : 7);
      if (const auto named = dscp_number(child.line[2]); dscp && named && child.line.size() == 3) list = {*named};
      if (child.line[0] != "match" || !list || (child.line[1] != "dscp" && child.line[1] != "cos"))
        context_.unparsed(child.line);
      else
        (child.line[1] == "dscp" ? match.dscps : match.pcps) = *list;
    }
  }

  // A policy of type "quality-of-service": what it says of marks, and the port's own maps of all others.
  void read_policy(const Block& block) {
    Map& map = *context_.new_map(context_.place(block.line), 64);
    policies_[std::string(block.line.words.back())] = &map;
    map.has_preset = true;
    std::optional<std::uint8_t> rest;
    for (const Block& cls : block.children) {
      const std::string name(cls.line.words.back());
      const auto match = matches_.find(name);
      std::optional<std::uint8_t> to;
      for (const Block& child : cls.children) {
        if (child.line.starts_with("set traffic-class"))
          to = small_number(child.line[2], 7);
        else if (child.line[0] != "police" && child.line[0] != "drop" && child.line[0] != "set")
          context_.unparsed(child.line);
      }
      if (name == "class-default")
        rest = to;
      else if (match == matches_.end())
        context_.error("L9", context_.place(cls.line, block.line.text), fmt::format("there is no class-map '{}'", name),
                       "name one that is there, or add it");
      else if (to)
        for (const std::uint8_t dscp : match->second.dscps) map.to[dscp] = map.to[dscp].value_or(*to);
    }
    for (std::size_t dscp = 0; dscp < 64; ++dscp)
      if (!map.to[dscp]) map.to[dscp] = rest ? rest : dscps_->to[dscp];
  }

  // False for what is about QoS and not understood.
  bool read_top(const Block& block) {
    const Line& line = block.line;
    if (line.starts_with("qos profile")) return true;
    if (line.starts_with("interface")) return read_interface(block);
    if (line.starts_with("hostname")) return true;
    if (line.starts_with("class-map type qos")) return true;
    if (line.starts_with("policy-map type") && line[2].starts_with("q")) return true;
    if (line.starts_with("qos map")) return true;
    if (line.starts_with("qos rewrite") || line.starts_with("no qos rewrite")) return true;
    if (line.starts_with("priority-flow-control all off")) {
      context_.error("L3", context_.place(line), "PFC is off on the whole switch, whatever ports say", "remove it");
      return true;
    }
    if (line.starts_with("priority-flow-control pause watchdog")) return read_watchdog_default(line);
    if (!line.starts_with("ip access-list") && !line.starts_with("ipv6 access-list")) report(block);
    return !is_about_qos(line);
  }

  bool read_map(const Line& line) {
    const auto to = std::find(line.words.begin(), line.words.end(), "to");
    const auto at = static_cast<std::size_t>(to - line.words.begin());
    const std::string_view what = line[2], target = line[at + 1];
    const bool queue = target.ends_with("tx-queue");
    if (what == "traffic-class" && (target == "cos" || target == "dscp" || target == "exp")) return true;
    if (target == "mc-tx-queue") return true;
    const bool dscp = what == "dscp";
    if (!(what == "traffic-class" ? queue : target == "traffic-class" && (dscp || what == "cos"))) return false;
    const auto from = number_list(line, 3, at, dscp ? 63 : 7);
    const auto cls = small_number(line[at + 2], 7);
    if (!from || !cls) {
      context_.error("L9", context_.place(line), fmt::format("a number that no {} has", from ? target : what),
                     fmt::format("write {}", from || !dscp ? "0 to 7" : "0 to 63"));
      return false;
    }
    Map& map = queue ? *queues_ : dscp ? *dscps_ : *pcps_;
    for (const std::uint8_t number : *from)
      context_.map(map, number, *cls, context_.place(line), queue ? "traffic class" : dscp ? "DSCP" : "CoS");
    return true;
  }

  bool read_watchdog_default(const Line& line) {
    if (line[3] == "action" || line[3] == "override") return true;
    if (line[3] != "default") return false;
    const auto time = duration(line[5], seconds(1));
    if (!time) return line[5] == "auto";
    if (line[4] == "timeout")
      timeout_ = {context_.place(line), *time};
    else if (line[4] == "recovery-time")
      recovery_ = {context_.place(line), *time};
    else if (line[4] == "polling-interval")
      poll_ = {context_.place(line), *time};
    else
      return false;
    return true;
  }

  void check_times() {
    Device& device = context_.device();
    if (!poll_.first.empty()) {
      device.watchdog_poll = poll_.second;
      device.watchdog_poll_place = poll_.first;
    }
    for (const auto* time : {&timeout_, &recovery_}) {
      if (time->first.empty()) continue;
      if (time->second < milliseconds(10) || time->second > seconds(60))
        context_.error("L8", time->first, "EOS takes times from 0.01 to 60 s", "write one of them");
      if (!poll_.first.empty() && poll_.second * 2 > time->second)
        context_.error("L8", poll_.first, "the watchdog looks less than twice within the time after which it acts",
                       "poll at most half as long as the shorter of timeout and recovery-time");
    }
    if (timeout_.first.empty() || recovery_.first.empty()) return;
    if (recovery_.second < timeout_.second)
      context_.warning("L8", recovery_.first, "it restores sooner than it detects, so that a storm comes back at once",
                       "restore after the timeout or later");
  }

  void read_settings(const Block& block, Settings& settings) {
    for (const Block& child : block.children)
      if (!read_setting(child, block, settings)) context_.unparsed(child.line);
  }

  bool read_setting(const Block& child, const Block& section, Settings& settings) {
    const Line& line = child.line;
    const std::string place = context_.place(line, section.line.text);
    if (line.starts_with("priority-flow-control pause watchdog")) {
      if (!settings.watchdog) settings.watchdog = Watchdog{place, {}, {}};
      return read_watchdog(line, place, *settings.watchdog);
    }
    if (line.starts_with("priority-flow-control priority")) {
      const auto priorities = number_list(line, 2, line.size() - 1, 7);
      if (!priorities || (line.words.back() != "no-drop" && line.words.back() != "drop")) return false;
      for (const std::uint8_t p : *priorities) {
        const auto bit = static_cast<PrioritySet>(1u << p);
        settings.no_drop =
            static_cast<PrioritySet>(line.words.back() == "drop" ? settings.no_drop & ~bit : settings.no_drop | bit);
        settings.no_drop_places[p] = place;
      }
      return true;
    }
    if (line.starts_with("priority-flow-control")) {
      if (line.words.back() != "on" && line.words.back() != "off") return false;
      settings.pfc_on = line.words.back() == "on";
      settings.pfc_place = place;
      return true;
    }
    if (line.starts_with("no priority-flow-control pause watchdog")) {
      settings.no_watchdog = true;
      return true;
    }
    if (line.starts_with("no priority-flow-control") && line.size() == 2) {
      settings.pfc_on = false;
      settings.pfc_place = place;
      return true;
    }
    if (line.starts_with("qos trust") || line.starts_with("no qos trust")) {
      settings.trust = line[0] == "no" ? "nothing" : line[2];
      settings.trust_place = place;
      return settings.trust == "nothing" || settings.trust == "dscp" || settings.trust == "cos";
    }
    if (line.starts_with("service-policy type qos input")) {
      settings.policy = line[4];
      settings.policy_place = place;
      return true;
    }
    if (line.starts_with("qos cos") || line.starts_with("qos dscp")) return true;  // of packets without one
    if (line[0].ends_with("tx-queue")) return line[0] == "mc-tx-queue" || read_queue(child, section, settings);
    return !is_about_qos(line);
  }

  static bool read_watchdog(const Line& line, const std::string& place, Watchdog& dog) {
    dog.place = place;
    for (std::size_t i = 3; i + 1 < line.size(); ++i) {
      if (line[i] == "timeout") dog.detection = duration(line[i + 1], seconds(1));
      if (line[i] == "recovery-time") dog.restoration = duration(line[i + 1], seconds(1));
    }
    return line.size() == 3 || line[3] == "port";
  }

  bool read_queue(const Block& block, const Block& section, Settings& settings) {
    const auto number = small_number(block.line[1], 7);
    if (!number) return false;
    QueueSettings& queue = settings.queues[*number];
    queue.place = context_.place(block.line, section.line.text);
    const std::string within = fmt::format("{} | {}", section.line.text, block.line.text);
    for (const Block& child : block.children)
      if (!read_queue_line(child.line, context_.place(child.line, within), queue)) context_.unparsed(child.line);
    return true;
  }

  bool read_queue_line(const Line& line, const std::string& place, QueueSettings& queue) {
    if (line.starts_with("priority strict")) {
      queue.strict = true;
      return true;
    }
    if (line.starts_with("no priority")) {
      queue.weighted = true;
      queue.weighted_place = place;
      return true;
    }
    if (line.starts_with("bandwidth guaranteed")) return true;
    if (line.starts_with("bandwidth percent")) {
      const auto percent = small_number(line[2], 100);
      if (percent)
        queue.percent = *percent;
      else
        context_.error("L9", place, "a share that is no number from 0 to 100", "write 1 to 100");
      return true;
    }
    if (line.starts_with("shape rate")) {
      const auto value = lint::number(line[2]);
      if (!value || *value > 10'000'000'000ull) return false;
      Shaper shaper;
      if (line[3] == "percent")
        shaper.percent = static_cast<double>(*value);
      else if (line[3].empty() || line[3] == "kbps")
        shaper.rate = BitsPerSecond(*value * 1000);
      else
        return false;
      queue.shaper = shaper;
      return true;
    }
    if (line.starts_with("random-detect ecn count")) return true;
    if (line.starts_with("random-detect ecn")) return read_ecn(line, place, queue);
    if (line.starts_with("random-detect drop")) {
      Ecn& ecn = *context_.new_ecn(place);
      ecn.drops = true;
      if (queue.ecn == nullptr) queue.ecn = &ecn;
      return true;
    }
    return false;
  }

  bool read_ecn(const Line& line, const std::string& place, QueueSettings& queue) {
    Ecn& ecn = *context_.new_ecn(place);
    ecn.marks = true;
    std::string_view units[2];
    for (std::size_t i = 2; i < line.size(); ++i) {
      const bool low = line[i] == "minimum-threshold", high = line[i] == "maximum-threshold";
      if (low || high) {
        const auto value = lint::number(line[i + 1]);
        units[high ? 1 : 0] = line[i + 2];
        const std::uint64_t unit = line[i + 2] == "kbytes" ? 1000 : line[i + 2] == "mbytes" ? 1'000'000 : 1;
        if (value && *value < 1'000'000'000'000ull) (low ? ecn.kmin : ecn.kmax) = *value * unit;
      }
      if (line[i] == "max-mark-probability")
        if (const auto percent = small_number(line[i + 1], 255)) ecn.percent = *percent;
    }
    if (!ecn.kmin || !ecn.kmax) return false;
    if (units[0] != units[1])
      context_.error("L5", place, "the thresholds have different units", "write both in kbytes");
    if (units[0] != "bytes" && units[0] != "kbytes" && units[0] != "mbytes") ecn.unit = "units";
    queue.ecn = &ecn;
    return true;
  }

  bool read_interface(const Block& block) {
    const auto names = port_names(block.line.text.substr(std::min<std::size_t>(10, block.line.text.size())));
    const bool aggregated = names && names->front().starts_with("Port-Channel");
    if (block.line.starts_with("interface defaults")) read_defaults(block);
    if (!names || (!aggregated && !names->front().starts_with("Et"))) {
      report(block);
      return true;
    }
    Settings own;
    Port port;
    port.mtu = default_mtu_;
    bool member = aggregated;
    const Settings* profile = nullptr;
    bool shut = false;
    for (const Block& child : block.children) {
      const Line& line = child.line;
      const std::string place = context_.place(line, block.line.text);
      if (line[0] == "mtu" || line.starts_with("l2 mtu")) {
        port.mtu = lint::number(line.words.back());
        port.mtu_place = place;
      } else if (line[0] == "speed") {
        port.speed = port_speed(line[1] == "forced" ? line[2] : line[1]);
      } else if (line.starts_with("shutdown")) {
        shut = true;
      } else if (line[0] == "channel-group") {
        member = true;
      } else if (line.starts_with("service-profile")) {
        const auto found = profiles_.find(std::string(line[1]));
        if (found != profiles_.end())
          profile = &found->second;
        else
          context_.error("L9", place, fmt::format("there is no qos profile '{}'", line[1]),
                         "name one that is there, or add it");
      } else if (line[0] == "flowcontrol" && line.words.back() == "on") {
        flow_control_ = place;
      } else if (!read_setting(child, block, own)) {
        context_.unparsed(line);
      }
    }
    // QoS of an aggregated interface is said of it or of its members.
    const bool silent = profile == nullptr && own.trust.empty() && own.policy.empty() && own.queues.empty() &&
                        !own.pfc_on && own.no_drop == 0;
    if (!shut && !(member && silent)) add_ports(*names, block, profile, own, port);
    flow_control_.clear();
    return true;
  }

  void read_defaults(const Block& block) {
    for (const Block& child : block.children)
      if (child.line[0] == "mtu") default_mtu_ = lint::number(child.line[1]);
  }

  // Lines of other sections that are about QoS.
  void report(const Block& block) {
    for (const Block& child : block.children) {
      if (is_about_qos(child.line)) context_.unparsed(child.line);
      report(child);
    }
  }

  void add_ports(const std::vector<std::string>& names, const Block& block, const Settings* profile,
                 const Settings& own, Port& port) {
    static const Settings kNone;
    const Settings& base = profile == nullptr ? kNone : *profile;
    const std::string header = context_.place(block.line);
    if (port.mtu_place.empty()) port.mtu_place = header;
    const bool any = base.pfc_on || own.pfc_on;
    const bool on = own.pfc_on ? *own.pfc_on : base.pfc_on.value_or(false);
    const auto no_drop = static_cast<PrioritySet>(base.no_drop | own.no_drop);
    port.pfc_place = own.pfc_on ? own.pfc_place : any ? base.pfc_place : header;
    const auto& no_drops = own.no_drop != 0 ? own.no_drop_places : base.no_drop_places;
    if (!no_drops.empty()) port.classes_place = no_drops.rbegin()->second;
    if (any || no_drop != 0) port.pfc = on ? no_drop : PrioritySet(0);
    // A port like those of the fabric that says nothing was forgotten; one with words of its own was not.
    if (profile == nullptr && own.trust.empty() && own.policy.empty() && own.queues.empty() && !any && no_drop == 0 &&
        port.mtu.value_or(0) >= 9000)
      port.pfc = PrioritySet(0);
    check_pfc(on, any, no_drop, base, own, port);
    const std::string trust = own.trust.empty() ? base.trust : own.trust;
    const std::string& trust_place = own.trust.empty() ? base.trust_place : own.trust_place;
    if (trust != "nothing") {
      if (trust != "cos") port.dscp_to_class = dscps_;
      port.pcp_to_class = pcps_;
    } else if (port.pfc.value_or(0) != 0) {
      context_.error("L1", trust_place, "the port trusts no mark: all that enters is of one class", "trust dscp");
    }
    if (trust == "cos" && port.pfc.value_or(0) != 0)
      context_.warning("L1", trust_place, "the port trusts CoS: what has no VLAN tag loses its class", "trust dscp");
    port.class_to_queue = queues_;
    const Settings& classifying = own.policy.empty() ? base : own;
    if (!classifying.policy.empty()) {
      const auto found = policies_.find(classifying.policy);
      if (found == policies_.end())
        context_.error("L9", classifying.policy_place, fmt::format("there is no policy-map '{}'", classifying.policy),
                       "name one that is there, or add it");
      port.dscp_to_class = found == policies_.end() ? nullptr : found->second;
      port.pcp_to_class = nullptr;
    }
    if (!own.no_watchdog) port.watchdog = own.watchdog ? own.watchdog : base.watchdog;
    add_queues(base, own, port);
    Device& device = context_.device();
    if (port.watchdog) {
      device.has_watchdogs = true;
      if (!port.watchdog->detection && !timeout_.first.empty()) port.watchdog->detection = timeout_.second;
      if (!port.watchdog->restoration && !recovery_.first.empty()) port.watchdog->restoration = recovery_.second;
    }
    for (const std::string& name : names) {
      port.name = name;
      device.ports.push_back(port);
      if (names.size() == 1) continue;
      device.ports.back().pfc_place += " | " + name;
      device.ports.back().mtu_place += " | " + name;
    }
  }

  void check_pfc(bool on, bool any, PrioritySet no_drop, const Settings& base, const Settings& own, const Port& port) {
    if (no_drop != 0 && !on)
      context_.error("L3", any ? port.pfc_place : (own.no_drop != 0 ? own : base).no_drop_places.begin()->second,
                     "priorities are no-drop, but PFC is off: what overflows is dropped",
                     "write priority-flow-control on");
    if (on && no_drop == 0)
      context_.warning("L3", port.pfc_place, "PFC is on, but no priority is no-drop",
                       "write priority-flow-control priority N no-drop");
    if (on && !flow_control_.empty())
      context_.error("L3", flow_control_, "link pause stops all classes, where PFC is to stop some",
                     "write flowcontrol off");
  }

  // All queues are strict unless one says otherwise, which makes those below it weighted, too.
  void add_queues(const Settings& base, const Settings& own, Port& port) {
    if (base.queues.empty() && own.queues.empty()) return;
    bool weighted = false;
    std::string above;  // which makes it so
    unsigned sum = 0;
    for (std::size_t q = kPriorities; q-- > 0;) {
      const auto mine = own.queues.find(q), profile = base.queues.find(q);
      Queue& queue = port.queues[q];
      const QueueSettings* said = mine != own.queues.end()       ? &mine->second
                                  : profile != base.queues.end() ? &profile->second
                                                                 : nullptr;
      if (said == nullptr) {
        queue.scheduling = Scheduling{.strict = !weighted};
        continue;
      }
      if (said->strict && weighted)
        context_.warning(
            "L4", above,
            fmt::format("queue {} is strict, but this one above it is not: all below it are served in turn", q),
            "write priority strict, or let strict queues be the highest");
      if (said->weighted) above = said->weighted_place;
      weighted |= said->weighted;
      queue.place = said->weighted ? said->weighted_place : said->place;
      queue.scheduling = Scheduling{.strict = said->strict || !weighted, .weight = said->percent};
      queue.shaper = said->shaper;
      queue.ecn = said->ecn;
      sum += said->percent.value_or(0);
      if (sum > 100)
        context_.error("L9", said->place, fmt::format("the bandwidths sum up to {} percent", sum), "let them be 100");
    }
  }

  Context context_;
  Map *dscps_, *pcps_, *queues_;
  std::map<std::string, Settings, std::less<>> profiles_;
  std::map<std::string, Match> matches_;
  std::map<std::string, const Map*> policies_;
  std::pair<std::string, Duration> timeout_, recovery_, poll_;
  std::optional<std::uint64_t> default_mtu_;
  std::string flow_control_;  // of the interface that is being read
};

}  // namespace

Result<Device> parse_eos(std::string_view text, const std::string& path, const std::string& name,
                         findings::Report& report) {
  TL_ASSIGN_OR_RETURN(std::vector<Line> lines, lines_of(text, path, "!"));
  Device device = new_device(name, path, "eos");
  for (const Line& line : lines)
    if (line.indent == 0 && line[0] == "hostname" && line.size() == 2) device.name = line[1];
  Eos(path, device, report).read(blocks_of(std::move(lines)));
  return device;
}

}  // namespace tensorlane::lint
