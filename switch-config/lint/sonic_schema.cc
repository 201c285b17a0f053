#include "switch-config/lint/sonic_schema.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace tensorlane::lint::sonic {
namespace {

constexpr std::int64_t kAnyNumber = INT64_MAX;
constexpr std::string_view kBool = "true false";

constexpr std::array kMapTables{
    MapTable{"DSCP_TO_TC_MAP", 64, 15},          MapTable{"DOT1P_TO_TC_MAP", 8, 15},
    MapTable{"TC_TO_QUEUE_MAP", 16, 7},          MapTable{"TC_TO_PRIORITY_GROUP_MAP", 16, 7},
    MapTable{"MAP_PFC_PRIORITY_TO_QUEUE", 8, 7}, MapTable{"PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", 8, 7},
    MapTable{"TC_TO_DSCP_MAP", 16, 63},
};

constexpr Field reference(std::string_view table, std::string_view name, std::string_view to) {
  return {table, name, Kind::kReference, 0, 0, to};
}
constexpr Field numeric(std::string_view table, std::string_view name, std::int64_t lowest, std::int64_t highest,
                        std::string_view rule = "L9") {
  return {table, name, Kind::kNumber, lowest, highest, {}, rule};
}
constexpr Field word(std::string_view table, std::string_view name, std::string_view words,
                     std::string_view rule = "L9") {
  return {table, name, Kind::kWord, 0, 0, words, rule};
}

constexpr std::array kFields{
    reference("PORT_QOS_MAP", "dscp_to_tc_map", "DSCP_TO_TC_MAP"),
    reference("PORT_QOS_MAP", "dot1p_to_tc_map", "DOT1P_TO_TC_MAP"),
    reference("PORT_QOS_MAP", "tc_to_queue_map", "TC_TO_QUEUE_MAP"),
    reference("PORT_QOS_MAP", "tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP"),
    reference("PORT_QOS_MAP", "pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE"),
    reference("PORT_QOS_MAP", "pfc_to_pg_map", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
    reference("PORT_QOS_MAP", "tc_to_dscp_map", "TC_TO_DSCP_MAP"),
    reference("PORT_QOS_MAP", "scheduler", "SCHEDULER"),
    Field{"PORT_QOS_MAP", "pfc_enable", Kind::kPriorities},
    Field{"PORT_QOS_MAP", "pfcwd_sw_enable", Kind::kPriorities},
    Field{"PORT_QOS_MAP", "tc_to_dot1p_map"},
    Field{"PORT_QOS_MAP", "dscp_to_fc_map"},
    Field{"PORT_QOS_MAP", "exp_to_fc_map"},
    Field{"PORT_QOS_MAP", "mpls_tc_to_tc_map"},
    word("SCHEDULER", "type", "STRICT DWRR WRR"),
    numeric("SCHEDULER", "weight", 1, 100),
    Field{"SCHEDULER", "priority", Kind::kForbidden},
    word("SCHEDULER", "meter_type", "packets bytes"),
    numeric("SCHEDULER", "cir", 0, kAnyNumber),
    numeric("SCHEDULER", "pir", 0, kAnyNumber),
    numeric("SCHEDULER", "cbs", 0, kAnyNumber),
    numeric("SCHEDULER", "pbs", 0, kAnyNumber),
    reference("QUEUE", "scheduler", "SCHEDULER"),
    reference("QUEUE", "wred_profile", "WRED_PROFILE"),
    word("WRED_PROFILE", "ecn",
         "ecn_none ecn_green ecn_yellow ecn_red ecn_green_yellow ecn_green_red ecn_yellow_red ecn_all", "L5"),
    word("WRED_PROFILE", "wred_green_enable", kBool, "L5"),
    word("WRED_PROFILE", "wred_yellow_enable", kBool, "L5"),
    word("WRED_PROFILE", "wred_red_enable", kBool, "L5"),
    numeric("WRED_PROFILE", "green_min_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "green_max_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "green_drop_probability", 0, 100, "L5"),
    numeric("WRED_PROFILE", "yellow_min_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "yellow_max_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "yellow_drop_probability", 0, 100, "L5"),
    numeric("WRED_PROFILE", "red_min_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "red_max_threshold", 0, kAnyNumber, "L5"),
    numeric("WRED_PROFILE", "red_drop_probability", 0, 100, "L5"),
    word("BUFFER_POOL", "type", "ingress egress both"),
    word("BUFFER_POOL", "mode", "static dynamic"),
    numeric("BUFFER_POOL", "size", 0, kAnyNumber),
    numeric("BUFFER_POOL", "xoff", 0, kAnyNumber),
    numeric("BUFFER_POOL", "percentage", 0, 255),
    reference("BUFFER_PROFILE", "pool", "BUFFER_POOL"),
    numeric("BUFFER_PROFILE", "size", 0, kAnyNumber),
    numeric("BUFFER_PROFILE", "dynamic_th", -8, 7),
    numeric("BUFFER_PROFILE", "static_th", 0, kAnyNumber),
    numeric("BUFFER_PROFILE", "xon", 0, kAnyNumber),
    numeric("BUFFER_PROFILE", "xoff", 0, kAnyNumber),
    numeric("BUFFER_PROFILE", "xon_offset", 0, kAnyNumber),
    word("BUFFER_PROFILE", "headroom_type", "static dynamic"),
    word("BUFFER_PROFILE", "packet_discard_action", "drop trim"),
    reference("BUFFER_PG", "profile", "BUFFER_PROFILE"),
    reference("BUFFER_QUEUE", "profile", "BUFFER_PROFILE"),
    Field{"BUFFER_PORT_INGRESS_PROFILE_LIST", "profile_list", Kind::kReferences, 0, 0, "BUFFER_PROFILE"},
    Field{"BUFFER_PORT_EGRESS_PROFILE_LIST", "profile_list", Kind::kReferences, 0, 0, "BUFFER_PROFILE"},
    Field{"CABLE_LENGTH", "*", Kind::kLength, 0, 0, {}, "L6"},
    numeric("DEFAULT_LOSSLESS_BUFFER_PARAMETER", "default_dynamic_th", -8, 7),
    numeric("DEFAULT_LOSSLESS_BUFFER_PARAMETER", "over_subscribe_ratio", 0, 1000),
    Field{"DEFAULT_LOSSLESS_BUFFER_PARAMETER", "max_headroom_size"},
    numeric("LOSSLESS_TRAFFIC_PATTERN", "mtu", 64, 9216),
    numeric("LOSSLESS_TRAFFIC_PATTERN", "small_packet_percentage", 0, 100),
    word("PFC_WD", "action", "drop forward alert", "L8"),
    numeric("PFC_WD", "detection_time", 100, 5000, "L8"),
    numeric("PFC_WD", "restoration_time", 100, 60000, "L8"),
    numeric("PFC_WD", "POLL_INTERVAL", 100, 1000, "L8"),
    word("PFC_WD", "pfc_stat_history", "enable disable"),
    word("PFC_WD", "BIG_RED_SWITCH", "enable disable"),
};

}  // namespace

const MapTable* find_map_table(std::string_view table) {
  const auto found =
      std::find_if(kMapTables.begin(), kMapTables.end(), [&](const auto& t) { return t.table == table; });
  return found == kMapTables.end() ? nullptr : &*found;
}

const Field* find_field(std::string_view table, std::string_view field) {
  const auto found = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) {
    return f.table == table && (f.name == "*" || f.name == field);
  });
  return found == kFields.end() ? nullptr : &*found;
}

bool is_known_table(std::string_view table) {
  return std::any_of(kFields.begin(), kFields.end(), [&](const Field& f) { return f.table == table; });
}

bool is_about_qos(std::string_view table) {
  constexpr std::string_view kParts[] = {"QOS",  "BUFFER", "PFC",  "WRED",    "SCHEDULER",
                                         "_TC_", "QUEUE",  "DSCP", "HEADROOM"};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](std::string_view part) { return table.find(part) != std::string_view::npos; });
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> length(std::string_view text) {
  if (!text.ends_with('m')) return std::nullopt;
  const auto metres = number(text.substr(0, text.size() - 1));
  if (!metres || *metres < 0 || *metres > 100'000) return std::nullopt;
  return static_cast<double>(*metres);
}

std::optional<std::uint8_t> priorities(std::string_view text) {
  std::uint8_t set = 0;
  if (text.empty()) return set;
  for (const std::string_view part : split(text, ',')) {
    if (part.size() != 1 || part[0] < '0' || part[0] > '7') return std::nullopt;
    set = static_cast<std::uint8_t>(set | 1u << (part[0] - '0'));
  }
  return set;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string expectation(const Field& field) {
  switch (field.kind) {
    case Kind::kNumber:
      if (field.highest == kAnyNumber) return "a whole number";
      return fmt::format("a number from {} to {}", field.lowest, field.highest);
    case Kind::kWord:
      return fmt::format("one of: {}", field.words);
    case Kind::kPriorities:
      return "priorities from 0 to 7 with commas and no blanks, such as 3,5";
    case Kind::kLength:
      return "a length in metres such as 40m";
    case Kind::kReference:
    case Kind::kReferences:
      return fmt::format("the name of a row of {}", field.words);
    case Kind::kText:
    case Kind::kForbidden:
      break;
  }
  return "nothing";
}

std::string complaint(const Field& field, std::string_view value) {
  bool good = true;
  switch (field.kind) {
    case Kind::kNumber: {
      const auto n = number(value);
      good = n && *n >= field.lowest && *n <= field.highest;
      break;
    }
    case Kind::kWord: {
      const auto words = split(field.words, ' ');
      good = std::find(words.begin(), words.end(), value) != words.end();
      break;
    }
    case Kind::kPriorities:
      good = priorities(value).has_value();
      break;
    case Kind::kLength:
      good = length(value).has_value();
      break;
    case Kind::kForbidden:
      return "the device does not know this field and drops the whole row";
    case Kind::kReference:
    case Kind::kReferences:
    case Kind::kText:
      break;
  }
  return good ? "" : fmt::format("'{}' is not {}", value, expectation(field));
}

}  // namespace tensorlane::lint::sonic
