// qos_features.conf: lines "key = value", a key being words with dots between.
#include <algorithm>

#include <fmt/format.h>

#include "switch-config/lint/cumulus_settings.h"

namespace tensorlane::lint::cumulus {
namespace {

// Groups of ports with marks of their own; the feature's name is part of theirs.
constexpr std::string_view kSource = "source.";

std::vector<std::string_view> parts_of(std::string_view key) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = key.find('.');
    parts.push_back(key.substr(0, end));
    if (end == std::string_view::npos) return parts;
    key.remove_prefix(end + 1);
  }
}

// "cos_5" -> 5
std::optional<std::uint8_t> suffix(std::string_view word, std::string_view stem) {
  if (!word.starts_with(stem)) return std::nullopt;
  return small_number(word.substr(stem.size()), 7);
}

class Flat {
 public:
  Flat(Context& context, Settings& settings) : context_(context), settings_(settings) {}

  void read(const Line& line) {
    place_ = context_.place(line);
    const std::size_t equals = line.text.find('=');
    if (equals == std::string_view::npos) return context_.unparsed(line);
    const auto key = parts_of(trimmed(line.text.substr(0, equals)));
    value_ = trimmed(line.text.substr(equals + 1, line.text.find('#') - equals - 1));
    words_ = {line.number, 0, value_, words_of(value_)};
    if (value_.empty() || !read_key(key)) context_.unparsed(line);
  }

  // Which ports a group has is known at the end.
  void bind() {
    for (auto& [name, mapping] : settings_.mappings)
      if (name.starts_with(kSource)) complete(mapping);
    for (const auto& [group, binding] : bindings_) {
      const auto& [feature, ports, place] = binding;
      for (const std::string& name : ports) {
        PortSettings& port = settings_.ports[name];
        if (port.place.empty()) port.place = place;
        if (feature == "pfc") {
          port.pfc = group.substr(feature.size() + 1);
          port.pfc_place = place;
        } else if (feature == "pfc_watchdog") {
          port.watchdog = Watchdog{place, {}, {}};
        } else if (feature == "link_pause") {
          port.link_pause = place;
        } else if (feature == "shaping") {
          port.shaping = group.substr(feature.size() + 1);
        } else if (feature == "ecn_red") {
          add_marking(port, group.substr(feature.size() + 1));
        } else if (feature == "source") {
          port.mapping = group;
        } else if (feature == "egress_sched") {
          port.schedule = group.substr(feature.size() + 1);
        }
      }
    }
  }

 private:
  struct Binding {
    std::string feature;
    std::vector<std::string> ports;
    std::string place;
  };

  // A group of ports that says nothing of its marks has those of the whole switch.
  void complete(Mapping& mapping) {
    const Mapping& global = settings_.mapping(kGlobal, context_, true);
    if (mapping.dscps->said.none()) mapping.dscps = global.dscps;
    if (mapping.pcps->said.none()) mapping.pcps = global.pcps;
    if (mapping.trust.empty()) mapping.trust = global.trust;
  }

  // A port may be in several groups, of different queues: together they are one profile.
  void add_marking(PortSettings& port, const std::string& group) {
    if (port.marking.empty()) {
      port.marking = group;
      return;
    }
    std::string& both = joined_[{port.marking, group}];
    if (both.empty()) {
      both = fmt::format("joined {}", joined_.size());  // no group's name: it has a blank
      Marking marking = settings_.markings[port.marking];
      for (std::size_t q = 0; q < kPriorities; ++q)
        if (Ecn* const ecn = settings_.markings[group][q]) marking[q] = ecn;
      settings_.markings[both] = marking;
    }
    port.marking = both;
  }

  bool read_key(const std::vector<std::string_view>& key) {
    const std::string_view feature = key[0];
    if (key.size() == 2 && key[1] == "port_group_list") return true;
    if (feature == "traffic") return read_traffic(key, 1, settings_.mapping(kGlobal, context_, true));
    if (feature == "default_ecn_red_conf" && key.size() == 2) return read_marking(key[1], std::string(kGlobal));
    if (feature == "default_egress_sched" && key.size() == 3)
      return read_schedule(key[1], key[2], std::string(kGlobal));
    if (feature == "cos_egr_queue" && key.size() == 3 && key[2] == "uc") return read_queue(key[1]);
    if (key.size() < 3) return false;
    const std::string group(key[1]);
    if (key[2] == "port_set") return read_ports(feature, group);
    if (feature == "source")
      return read_traffic(key, 2, settings_.mapping(fmt::format("{}{}", kSource, group), context_, true));
    if (feature == "pfc" && key.size() == 3) return read_pfc(key[2], settings_.pfcs[group]);
    if (feature == "ecn_red" && key.size() == 3) return read_marking(key[2], group);
    if (feature == "egress_sched" && key.size() == 4) return read_schedule(key[2], key[3], group);
    if (feature == "shaping" && key.size() == 4) return read_shaper(key[2], key[3], settings_.shapings[group]);
    return feature == "link_pause" || feature == "remark" || feature == "pfc_watchdog";
  }

  std::optional<std::vector<std::uint8_t>> numbers(std::size_t highest) {
    auto list = number_list(words_, 0, words_.size(), highest);
    if (!list && value_.find_first_not_of("[] ,") != std::string_view::npos)
      context_.error("L9", place_, "a number that does not exist", fmt::format("write 0 to {}", highest));
    return list;
  }

  // From the part `at` of the key on.
  bool read_traffic(const std::vector<std::string_view>& key, std::size_t at, Mapping& mapping) {
    const auto part = [&](std::size_t i) { return at + i < key.size() ? key[at + i] : std::string_view(); };
    if (part(0) == "packet_priority_source_set") {
      const bool dscp = value_.find("dscp") != std::string_view::npos,
                 pcp = value_.find("802.1p") != std::string_view::npos || value_.find("cos") != std::string_view::npos;
      mapping.trust = dscp && pcp ? "both" : dscp ? "l3" : pcp ? "l2" : "port";
      mapping.trust_place = place_;
      return true;
    }
    if (part(1).empty())
      return part(0) == "port_default_priority" || part(0) == "packet_priority_remark_set" ||
             part(0) == "remark_packet_priority";
    const auto priority = suffix(part(0), "cos_");
    if (part(2).empty() || !priority || part(1) == "priority_remark") return priority.has_value();
    const bool dscp = part(2) == "dscp";
    if (part(1) != "priority_source" || (!dscp && part(2) != "8021p")) return false;
    for (const std::uint8_t from : numbers(dscp ? 63 : 7).value_or(std::vector<std::uint8_t>()))
      context_.map(dscp ? *mapping.dscps : *mapping.pcps, from, *priority, place_, dscp ? "DSCP" : "PCP");
    return true;
  }

  bool read_queue(std::string_view cos) {
    const auto priority = suffix(cos, "cos_");
    const auto queue = numbers(7);
    if (!priority || !queue) return false;
    context_.map(settings_.queue_map(kGlobal, context_), *priority, queue->front(), place_, "switch priority");
    return true;
  }

  bool read_marking(std::string_view what, const std::string& group) {
    Marking& marking = settings_.markings[group];
    if (what == "egress_queue_list") {
      Ecn* const ecn = ecn_of(group);
      for (const std::uint8_t q : numbers(7).value_or(std::vector<std::uint8_t>())) marking[q] = ecn;
      return true;
    }
    Ecn& ecn = *ecn_of(group);
    if (what == "ecn_enable" || what == "red_enable") {
      (what[0] == 'e' ? ecn.marks : ecn.drops) = value_ == "true";
      if (what[0] == 'e') ecn.marks_place = place_;
      return value_ == "true" || value_ == "false";
    }
    if (!set_threshold(what, value_, ecn)) {
      const bool known = what == "probability" || what.find("_threshold") != std::string_view::npos;
      if (known) context_.error("L5", place_, fmt::format("'{}' is no number", value_), "write digits alone");
      return known;
    }
    (what == "probability" ? ecn.percent_place : ecn.place) = place_;
    return true;
  }

  Ecn* ecn_of(const std::string& group) {
    Ecn*& ecn = ecns_[group];
    if (ecn == nullptr) ecn = context_.new_ecn(place_);
    return ecn;
  }

  bool read_schedule(std::string_view queue, std::string_view what, const std::string& group) {
    const auto number = suffix(queue, "egr_queue_");
    if (!number || what != "bw_percent") return false;
    Schedule& schedule = settings_.schedules[group];
    const auto percent = small_number(value_, 100);
    if (!percent) {
      context_.error("L9", place_, "a share that is no number from 0 to 100", "write 0, which is strict, to 100");
      return true;
    }
    cumulus::schedule(schedule[*number], *percent == 0, place_);
    if (*percent != 0) schedule[*number].scheduling->weight = *percent;
    unsigned& sum = sums_[group];
    sum += *percent;
    if (sum > 100)
      context_.error("L9", place_, fmt::format("the bandwidths sum up to {} percent", sum), "let them be 100 at most");
    return true;
  }

  bool read_shaper(std::string_view queue, std::string_view what,
                   std::array<std::optional<Shaper>, kPriorities>& shaping) {
    const auto number = suffix(queue, "egr_queue_");
    if (!number || what != "shaper") return what == "shaper";
    const std::size_t comma = value_.find(',');
    const auto most = comma == std::string_view::npos
                          ? std::nullopt
                          : lint::number(trimmed(value_.substr(comma + 1, value_.find(']') - comma - 1)));
    if (!most || *most > 10'000'000'000ull) return false;
    shaping[*number] = Shaper{.percent = {}, .rate = BitsPerSecond(*most * 1000)};
    return true;
  }

  // "swp1-swp32,swp40"
  bool read_ports(std::string_view feature, const std::string& group) {
    std::string_view list = value_;
    if (list.starts_with('[') && list.ends_with(']')) list = trimmed(list.substr(1, list.size() - 2));
    auto names = port_names(list);
    if (!names) return false;
    bindings_[fmt::format("{}.{}", feature, group)] = {std::string(feature), std::move(*names), place_};
    return true;
  }

  bool read_pfc(std::string_view what, Pfc& pfc) {
    if (pfc.place.empty()) pfc.place = place_;
    if (what == "cos_list") {
      for (const std::uint8_t p : numbers(7).value_or(std::vector<std::uint8_t>()))
        pfc.priorities = static_cast<PrioritySet>(pfc.priorities | 1u << p);
      pfc.place = place_;
      return true;
    }
    if (what == "tx_enable" || what == "rx_enable") {
      (what[0] == 't' ? pfc.tx : pfc.rx) = value_ == "true";
      (what[0] == 't' ? pfc.tx_place : pfc.rx_place) = place_;
      return value_ == "true" || value_ == "false";
    }
    if (what == "cable_length") {
      const auto metres = number(value_);
      pfc.metres_place = place_;
      if (metres && *metres >= 1 && *metres <= 100'000)
        pfc.metres = static_cast<double>(*metres);
      else
        context_.error("L6", place_, fmt::format("'{}' is no length from 1 to 100000 m", value_),
                       "write the cable's metres");
      return true;
    }
    if (what == "port_buffer_bytes") pfc.buffer = number(value_);
    if (what == "xoff_size") pfc.xoff = number(value_);
    return what == "port_buffer_bytes" || what == "xoff_size" || what == "xon_delta";
  }

  Context& context_;
  Settings& settings_;
  std::string place_;
  std::string_view value_;
  Line words_;  // the value alone
  std::map<std::string, Binding> bindings_;
  std::map<std::string, Ecn*> ecns_;
  std::map<std::pair<std::string, std::string>, std::string> joined_;  // profiles of ports that are in two groups
  std::map<std::string, unsigned> sums_;
};

}  // namespace

void read_flat(const std::vector<Line>& lines, Context& context, Settings& settings) {
  Flat flat(context, settings);
  for (const Line& line : lines) flat.read(line);
  flat.bind();
}

}  // namespace tensorlane::lint::cumulus
