// What `dcb ... show` of iproute2 printed on a host, as text or with -j.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/json/json.h"
#include "switch-config/lint/host.h"
#include "switch-config/lint/languages.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

using Json = nlohmann::json;
using Pairs = std::vector<std::pair<std::string, std::string>>;  // "3:on" -> {"3", "on"}

// "128K", "128Kb", "204800b"
std::optional<std::uint64_t> size_of(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto value = number(text.substr(0, digits));
  const std::string_view unit = text.substr(digits);
  const std::uint64_t factor = unit.starts_with('K') ? 1024 : unit.starts_with('M') ? 1024 * 1024 : 1;
  if (!value || *value > (1ull << 40)) return std::nullopt;
  return *value * factor;
}

// "40Gbit", "0bit"; -j has another unit.
std::optional<BitsPerSecond> rate_of(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto value = number(text.substr(0, digits));
  const std::string_view unit = text.substr(digits);
  const std::uint64_t factor = unit == "Kbit"   ? 1000
                               : unit == "Mbit" ? 1'000'000
                               : unit == "Gbit" ? 1'000'000'000
                               : unit == "bit"  ? 1
                                                : 0;
  if (!value || factor == 0 || *value > 10'000'000'000'000ull / factor) return std::nullopt;
  return BitsPerSecond(*value * factor);
}

bool is_on(std::string_view word) {
  return word == "on" || word == "true" || word == "1";
}

class Dcb {
 public:
  Dcb(const std::string& path, Device& device, findings::Report& report) : context_(path, device, report) {
    dscps_ = context_.new_map(path + ": dscp-prio", 64);
    dscps_->has_preset = true;  // the NIC's own
    device.ports.emplace_back();
    port().name = device.name;
  }

  std::size_t known() const { return known_; }

  void read(const Line& line) {
    place_ = context_.place(line);
    if (line[0].starts_with("/sys/")) return count(read_host_file(line, host_, context_), line);
    if (line[0] == "dcb" || line[0] == "$") return;  // the command itself
    if (line[0] == "willing" || line[0] == "pfc-cap") return count(read_flags(line), line);
    if (line[0] == "host" || line[0] == "lld_managed" || line[0] == "cee" || line[0] == "ieee" || line[0] == "static") {
      firmware_ = std::find(line.words.begin(), line.words.end(), "host") == line.words.end() ? place_ : "";
      return count(true, line);
    }
    Pairs pairs;
    for (std::size_t i = 1; i < line.size(); ++i) {
      const std::size_t colon = line[i].find(':');
      pairs.emplace_back(line[i].substr(0, colon), colon == std::string_view::npos ? "" : line[i].substr(colon + 1));
    }
    count(take(std::string(line[0]), pairs), line);
  }

  // One object of -j.
  void read(const Json& object, int number) {
    for (const auto& [name, value] : object.items()) {
      std::string key = name;
      std::replace(key.begin(), key.end(), '_', '-');
      place_ = fmt::format("{}:{}: {}", context_.path(), number, name);
      const Line line{number, 0, name, {name}};
      if (value.is_boolean() || value.is_number()) {
        count(take_flag(key, value.is_boolean() ? (value.get<bool>() ? "on" : "off") : value.dump()), line);
        continue;
      }
      constexpr std::string_view kTools[] = {"ets", "pfc", "app", "buffer", "dcbx", "maxrate", "apptrust", "rewr"};
      if (value.is_object() && std::find(std::begin(kTools), std::end(kTools), key) != std::end(kTools)) {
        read(value, number);
        continue;
      }
      if (!value.is_array()) {
        count(false, line);
        continue;
      }
      Pairs pairs;
      for (std::size_t i = 0; i < value.size(); ++i) {
        const Json& item = value[i];
        if (item.is_array() && item.size() == 2)
          pairs.emplace_back(text(item[0]), text(item[1]));
        else
          pairs.emplace_back(std::to_string(i), text(item));
      }
      count(take(key, pairs), line);
    }
  }

  void finish() {
    const PrioritySet pfc = port().pfc.value_or(0);
    if (dscps_->said.any()) port().dscp_to_class = dscps_;
    add_classes(host_, context_.device());
    if (pfc == 0) return;
    const auto warn = [&](const std::string& place, const char* message, const char* fix) {
      if (!place.empty()) context_.warning("L10", place, message, fix);
    };
    warn(willing_, "the NIC takes its settings from the switch by DCBX", "run dcb ets set dev IF willing off");
    warn(firmware_, "DCBX is not the host's: firmware or a daemon may undo these settings",
         "run dcb dcbx set dev IF host ieee");
    warn(untrusted_.empty() ? host_.untrusted : untrusted_,
         "the NIC does not trust DSCP, so that routed packets without a VLAN tag lose their class",
         "run dcb apptrust set dev IF order dscp pcp");
    if (dscps_->said.none())
      warn(apps_, "no DSCP leads to a priority: the NIC trusts PCP alone", "run dcb app add dev IF dscp-prio");
    check_host(host_, context_);
  }

 private:
  Port& port() { return context_.device().ports.front(); }

  void count(bool known, const Line& line) {
    if (known)
      ++known_;
    else
      context_.unparsed(line);
  }

  static std::string text(const Json& value) {
    if (const auto* const string = value.get_ptr<const std::string*>()) return *string;
    if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
    return value.is_number() ? value.dump() : std::string();
  }

  bool read_flags(const Line& line) {
    for (std::size_t i = 0; i + 1 < line.size(); i += 2) take_flag(std::string(line[i]), std::string(line[i + 1]));
    return true;
  }

  bool take_flag(const std::string& key, const std::string& value) {
    if (key == "willing" && is_on(value)) willing_ = place_;
    if (key == "host" && !is_on(value)) firmware_ = place_;
    if (key == "total-size") host_.total_size = size_of(value);
    constexpr std::string_view kKnown[] = {"willing",     "ets-cap",    "cbs",         "pfc-cap", "macsec-bypass",
                                           "delay",       "host",       "ieee",        "cee",     "static",
                                           "lld-managed", "total-size", "default-prio"};
    return std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown);
  }

  bool take(const std::string& key, const Pairs& pairs) {
    constexpr std::string_view kIgnored[] = {
        "pg-bw",           "requests",  "indications", "ethtype-prio", "stream-port-prio",
        "dgram-port-prio", "port-prio", "pcp-prio",    "prio-dscp",    "prio-pcp"};
    if (key.starts_with("reco-") || std::find(std::begin(kIgnored), std::end(kIgnored), key) != std::end(kIgnored))
      return true;
    if (key == "default-prio") {
      apps_ = place_;
      return true;
    }
    if (key == "order") {
      const bool dscp = std::any_of(pairs.begin(), pairs.end(),
                                    [](const auto& p) { return p.first == "dscp" || p.second == "dscp"; });
      if (!dscp) untrusted_ = place_;
      return true;
    }
    if (key == "total-size") {
      host_.total_size = pairs.empty() ? std::nullopt : size_of(pairs.front().first);
      return true;
    }
    if (key == "dscp-prio") return take_dscps(pairs);
    PrioritySet set = 0;
    for (const auto& [from, to] : pairs) {
      const auto index = small_number(from, 7);
      if (!index || !take_one(key, *index, to)) return false;
      if (is_on(to)) set = static_cast<PrioritySet>(set | 1u << *index);
    }
    if (key != "prio-pfc") return true;
    port().pfc = set;
    port().pfc_place = place_;
    return true;
  }

  bool take_one(const std::string& key, std::size_t index, const std::string& to) {
    const auto value = small_number(to, 255);
    if (key == "prio-pfc") return to == "on" || to == "off" || value;
    if (key == "tc-tsa") {
      host_.algorithms[index] = to;
      host_.algorithm_places[index] = place_;
      return true;
    }
    if (key == "tc-maxrate") {
      host_.rates[index] = rate_of(to);
      return true;
    }
    if (key == "buffer-size") {
      host_.buffer_sizes[index] = size_of(to);
      host_.size_place = place_;
      return host_.buffer_sizes[index].has_value();
    }
    if (!value) return false;
    if (key == "tc-bw") {
      host_.percents[index] = *value;
      host_.bandwidth_place = place_;
    } else if (key == "prio-tc") {
      if (*value >= kPriorities) return false;
      host_.classes[index] = *value;
      host_.class_places[*value] = place_;
    } else if (key == "prio-buffer") {
      host_.buffers[index] = *value;
      host_.buffer_place = place_;
    } else {
      return false;
    }
    return true;
  }

  bool take_dscps(const Pairs& pairs) {
    for (const auto& [from, to] : pairs) {
      const auto dscp = dscp_number(from), priority = small_number(to, 7);
      if (!dscp || !priority) return false;
      context_.map(*dscps_, *dscp, *priority, place_, "DSCP");
    }
    return true;
  }

  Context context_;
  Map* dscps_;
  HostSettings host_;
  std::string place_;  // of what is being read
  std::string willing_, firmware_, untrusted_, apps_;
  std::size_t known_ = 0;
};

// The objects of a text one after the other, each with the line where it begins.
Status read_objects(std::string_view text, const std::string& path, Dcb& dcb) {
  int line = 1;
  while (true) {
    while (!text.empty() && std::string_view(" \t\r\n").find(text.front()) != std::string_view::npos) {
      line += text.front() == '\n' ? 1 : 0;
      text.remove_prefix(1);
    }
    if (text.empty()) return {};
    std::size_t end = 0, depth = 0;
    bool quoted = false;
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (quoted && c == '\\')
        ++end;
      else if (c == '"')
        quoted = !quoted;
      else if (!quoted && (c == '{' || c == '['))
        ++depth;
      else if (!quoted && (c == '}' || c == ']') && (depth == 0 || --depth == 0))
        break;
      if (depth > 8) break;
    }
    const std::string_view object = text.substr(0, std::min(end + 1, text.size()));
    const Json json = Json::parse(object, nullptr, false);
    if (!json.is_object() && !(json.is_array() && json.empty()))
      return Status(Code::kInvalidArgument, "it is not JSON as dcb prints it", fmt::format("{}:{}", path, line),
                    "give what `dcb -j ... show` printed");
    if (json.is_object()) dcb.read(json, line);
    line += static_cast<int>(std::count(object.begin(), object.end(), '\n'));
    text.remove_prefix(object.size());
  }
}

}  // namespace

Result<Device> parse_dcb(std::string_view text, const std::string& path, const std::string& name,
                         findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const std::vector<Line> lines, lines_of(text, path, "#"));
  Device device = new_device(name, path, "dcb");
  device.is_host = true;
  Dcb dcb(path, device, report);
  if (!lines.empty() && (lines.front().text.front() == '{' || lines.front().text.front() == '['))
    TL_RETURN_IF_ERROR(read_objects(text, path, dcb));
  else
    for (const Line& line : lines) dcb.read(line);
  dcb.finish();
  if (dcb.known() == 0)
    return Status(Code::kInvalidArgument, "no line of it is from dcb", path, "give what `dcb ... show dev IF` printed");
  return device;
}

}  // namespace tensorlane::lint
