// NVUE: `nv set` commands.
#include <algorithm>

#include <fmt/format.h>

#include "switch-config/lint/cumulus_settings.h"

namespace tensorlane::lint::cumulus {
namespace {

bool is_on(std::string_view word) {
  return word == "on" || word == "enable" || word == "enabled" || word == "true";
}

class Commands {
 public:
  Commands(Context& context, Settings& settings) : context_(context), settings_(settings) {}

  void read(const Line& line) {
    place_ = context_.place(line);
    bool known = true;
    if (line.starts_with("nv set qos"))
      known = read_qos(line);
    else if (line.starts_with("nv set acl"))
      known = std::count(line.words.begin(), line.words.end(), "set") == 1;  // filters that do not mark
    else if (line.starts_with("nv set interface"))
      known = read_interface(line);
    else if (!line.starts_with("nv set"))
      known = !is_about_qos(line);
    else
      known = !is_about_qos(line);
    if (!known) context_.unparsed(line);
  }

 private:
  bool read_qos(const Line& line) {
    const std::string_view part = line[3], name = line[4];
    if (part == "roce") return read_roce(line);
    if (part == "pfc-watchdog") return read_watchdog(line);
    if (part == "traffic-pool") return read_pool(line);
    if (part == "remark") return true;
    if (part != "mapping" && part != "egress-queue-mapping" && part != "egress-scheduler" && part != "pfc" &&
        part != "congestion-control" && part != "egress-shaper")
      return false;
    if (settings_.explicit_.empty()) settings_.explicit_ = place_;
    if (part == "mapping") return read_mapping(line, settings_.mapping(name, context_, false));
    if (part == "egress-queue-mapping") return read_queue_map(line, settings_.queue_map(name, context_));
    if (part == "egress-scheduler") return read_scheduler(line, settings_.schedules[std::string(name)]);
    if (part == "pfc") return read_pfc(line, settings_.pfcs[std::string(name)]);
    if (part == "congestion-control") return read_marking(line, settings_.markings[std::string(name)]);
    return read_shaper(line, settings_.shapings[std::string(name)]);
  }

  bool read_roce(const Line& line) {
    const std::string_view what = line[4], value = line[5];
    if (what == "enable" || what == "state") {
      is_off_ |= !is_on(value);
      if (is_off_) settings_.roce.clear();
      return true;
    }
    if (!is_off_) settings_.roce = place_;
    if (what == "mode") settings_.roce_mode = value;
    if (what == "cable-length")
      if (const auto metres = number(value); metres && *metres <= 100'000)
        settings_.roce_metres = static_cast<double>(*metres);
    return what.empty() || what == "mode" || what == "cable-length";
  }

  bool bad_number(std::string_view range) {
    context_.error("L9", place_, "a number that does not exist", fmt::format("write {}", range));
    return true;
  }

  bool read_mapping(const Line& line, Mapping& mapping) {
    if (line[5] == "trust") {
      mapping.trust = line[6];
      mapping.trust_place = place_;
      if (line[6] != "l2" && line[6] != "l3" && line[6] != "both" && line[6] != "port")
        context_.error("L9", place_, fmt::format("'{}' cannot be trusted", line[6]), "write l3 or both");
      return true;
    }
    if (line[5] == "port-default-sp") return true;
    const bool dscp = line[5] == "dscp";
    if ((!dscp && line[5] != "pcp") || line[7] != "switch-priority") return false;
    const auto from = number_list(line, 6, 7, dscp ? 63 : 7);
    const auto to = small_number(line[8], 7);
    if (!from || !to) return bad_number(from ? "0 to 7" : dscp ? "0 to 63" : "0 to 7");
    for (const std::uint8_t number : *from)
      context_.map(dscp ? *mapping.dscps : *mapping.pcps, number, *to, place_, dscp ? "DSCP" : "PCP");
    return true;
  }

  bool read_queue_map(const Line& line, Map& map) {
    if (line[5] != "switch-priority" || line[7] != "traffic-class") return false;
    const auto from = number_list(line, 6, 7, 7);
    const auto to = small_number(line[8], 7);
    if (!from || !to) return bad_number("0 to 7");
    for (const std::uint8_t number : *from) context_.map(map, number, *to, place_, "switch priority");
    return true;
  }

  bool read_scheduler(const Line& line, Schedule& schedule) {
    const auto queues = number_list(line, 6, 7, 7);
    if (line[5] != "traffic-class") return false;
    if (!queues) return bad_number("0 to 7");
    for (const std::uint8_t q : *queues) {
      if (line[7] == "mode") {
        if (line[8] != "strict" && line[8] != "dwrr") {
          context_.error("L9", place_, fmt::format("there is no mode '{}'", line[8]), "write strict or dwrr");
          return true;
        }
        cumulus::schedule(schedule[q], line[8] == "strict", place_);
      } else if (line[7] == "bw-percent") {
        const auto percent = small_number(line[8], 100);
        if (!percent) return bad_number("0 to 100");
        if (!schedule[q].scheduling) cumulus::schedule(schedule[q], false, place_);
        schedule[q].scheduling->weight = *percent;
        if (schedule[q].scheduling->strict && *percent > 0)
          context_.error("L9", place_, fmt::format("traffic class {} is strict and has a share", q),
                         "remove one of both");
      } else {
        return false;
      }
    }
    check_sum(schedule);
    return true;
  }

  void check_sum(const Schedule& schedule) {
    unsigned sum = 0;
    for (const Queue& queue : schedule)
      if (queue.scheduling) sum += queue.scheduling->weight.value_or(0);
    if (sum > 100)
      context_.error("L9", place_, fmt::format("the bandwidths sum up to {} percent", sum), "let them be 100 at most");
  }

  bool read_pfc(const Line& line, Pfc& pfc) {
    if (pfc.place.empty()) pfc.place = place_;
    const std::string_view what = line[5], value = line.words.back();
    if (what == "switch-priority") {
      const auto list = number_list(line, 6, line.size(), 7);
      if (!list) return bad_number("0 to 7");
      for (const std::uint8_t p : *list) pfc.priorities = static_cast<PrioritySet>(pfc.priorities | 1u << p);
      pfc.place = place_;
      return true;
    }
    if (what == "tx" || what == "rx") {
      (what == "tx" ? pfc.tx : pfc.rx) = is_on(value);
      (what == "tx" ? pfc.tx_place : pfc.rx_place) = place_;
      return is_on(value) || value == "disable" || value == "disabled" || value == "off";
    }
    if (what == "cable-length") {
      const auto metres = number(value);
      pfc.metres_place = place_;
      if (metres && *metres >= 1 && *metres <= 100'000)
        pfc.metres = static_cast<double>(*metres);
      else
        context_.error("L6", place_, fmt::format("'{}' is no length from 1 to 100000 m", value),
                       "write the cable's metres");
      return true;
    }
    if (what == "port-buffer") pfc.buffer = number(value);
    if (what == "xoff-threshold") pfc.xoff = number(value);
    return what == "port-buffer" || what == "xoff-threshold" || what == "xon-threshold" ||
           what == "small-packet-probability";
  }

  bool read_marking(const Line& line, Marking& marking) {
    const auto queues = number_list(line, 6, 7, 7);
    if (line[5] != "traffic-class") return false;
    if (!queues) return bad_number("0 to 7");
    for (const std::uint8_t q : *queues) {
      Ecn*& ecn = marking[q];
      if (ecn == nullptr) ecn = context_.new_ecn(place_);
      if (line[7] == "ecn") {
        ecn->marks = is_on(line.words.back());
        ecn->marks_place = place_;
      } else if (line[7] == "red") {
        ecn->drops = is_on(line.words.back());
      } else if (set_threshold(line[7], line[8], *ecn)) {
        (line[7] == "probability" ? ecn->percent_place : ecn->place) = place_;
      } else if (line[7] == "probability" || line[7].find("threshold") != std::string_view::npos) {
        context_.error(
            "L5", place_,
            fmt::format("'{}' is no {}", line[8], line[7] == "probability" ? "percentage" : "number of bytes"),
            "write digits alone");
        return true;
      } else {
        return false;
      }
    }
    return true;
  }

  bool read_shaper(const Line& line, std::array<std::optional<Shaper>, kPriorities>& shaping) {
    if (line[5] == "port-max-rate") return true;
    const auto queues = number_list(line, 6, 7, 7);
    if (line[5] != "traffic-class" || !queues) return false;
    if (line[7] == "min-rate") return true;
    const auto kilobits = number(line[8]);
    if (line[7] != "max-rate" || !kilobits || *kilobits > 10'000'000'000ull) return false;
    for (const std::uint8_t q : *queues) shaping[q] = Shaper{.percent = {}, .rate = BitsPerSecond(*kilobits * 1000)};
    return true;
  }

  bool read_watchdog(const Line& line) {
    const auto value = number(line[5]);
    if (line[4] == "polling-interval" && value && *value <= 1'000'000) {
      settings_.poll = milliseconds(static_cast<std::int64_t>(*value));
      settings_.poll_place = place_;
      if (*value == 0) context_.error("L8", place_, "the watchdog never looks", "write such as 100");
      return true;
    }
    if (line[4] == "robustness" && value && *value <= 1000) {
      settings_.robustness = static_cast<unsigned>(*value);
      if (*value == 0) context_.error("L8", place_, "the watchdog acts before it looks", "write 1 or more");
      return true;
    }
    return false;
  }

  bool read_pool(const Line& line) {
    if (line[5] != "memory-percent") return line[5] == "switch-priority";
    const auto percent = small_number(line[6], 100);
    if (!percent) {
      context_.error("L6", place_, "a share that is no number from 0 to 100", "write 0 to 100");
      return true;
    }
    memory_ += *percent;
    if (memory_ > 100)
      context_.error("L6", place_, fmt::format("the pools sum up to {} percent of the memory", memory_),
                     "let them be 100 at most");
    return true;
  }

  bool read_interface(const Line& line) {
    const auto names = port_names(line[3]);
    if (!names) return !is_about_qos(line);
    if (!names->front().starts_with("swp")) return !is_about_qos(line);
    bool known = true;
    for (const std::string& name : *names) {
      PortSettings& port = settings_.ports[name];
      if (port.place.empty()) port.place = place_;
      known &= line[4] == "qos" ? read_port(line, port) : read_link(line, port);
    }
    return known;
  }

  bool read_link(const Line& line, PortSettings& port) {
    if (line.starts_with("nv set interface") && line[4] == "link" && line[5] == "mtu") {
      port.mtu = number(line[6]);
      port.mtu_place = place_;
    }
    if (line[4] == "link" && line[5] == "speed") port.speed = port_speed(line[6]);
    return true;
  }

  bool read_port(const Line& line, PortSettings& port) {
    const std::string_view part = line[5];
    if (part == "pfc-watchdog") {
      const std::string_view word = line.words.back();
      // The words of `nv set qos roce state` since 5.15 are others.
      if (line[6] == "state" && word != "enable" && word != "disable")
        context_.add("L9", findings::Severity::kNote, place_,
                     fmt::format("NVUE lists enable and disable here, not '{}'", word), "write one of them");
      if (word == "disable" || word == "disabled" || word == "off")
        port.watchdog.reset();
      else
        port.watchdog = Watchdog{place_, {}, {}};
      return true;
    }
    if (part == "link-pause") {
      port.link_pause = place_;
      return true;
    }
    if (part == "remark" || line[6] != "profile") return part == "remark";
    const std::string name(line[7]);
    if (part == "pfc") {
      port.pfc = name;
      port.pfc_place = place_;
    } else if (part == "mapping") {
      port.mapping = name;
    } else if (part == "congestion-control") {
      port.marking = name;
    } else if (part == "egress-scheduler") {
      port.schedule = name;
    } else if (part == "egress-shaper") {
      port.shaping = name;
    } else {
      return false;
    }
    return true;
  }

  Context& context_;
  Settings& settings_;
  std::string place_;  // of the line that is being read
  unsigned memory_ = 0;
  bool is_off_ = false;  // the RoCE macro
};

}  // namespace

void read_commands(const std::vector<Line>& lines, Context& context, Settings& settings) {
  Commands commands(context, settings);
  for (const Line& line : lines) commands.read(line);
}

}  // namespace tensorlane::lint::cumulus
