#include "switch-config/lint/mlnx_qos.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace tensorlane::lint {
namespace {

using findings::Report;
using findings::Severity;

constexpr std::string_view kTrust = "Priority trust state:";
constexpr std::string_view kDcbx = "DCBX mode:";
constexpr std::size_t kShownText = 80;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<unsigned> numbers(std::string_view text) {
  std::vector<unsigned> all;
  while (!text.empty()) {
    const std::size_t begin = text.find_first_of("0123456789");
    if (begin == std::string_view::npos) break;
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
    if (error == std::errc()) all.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return all;
}

// What stands behind `name` in "tc: 3 ratelimit: unlimited, tsa: ets, bw: 50%": up to the next comma.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  const std::size_t at = line.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + name.size());
  return trimmed(line.substr(0, line.find(',')));
}

class Output {
 public:
  Output(const std::string& path, Device& device, Report& report) : path_(path), device_(device), report_(report) {
    device_.maps.push_back(std::make_unique<Map>(Map{"dscp2prio", 64, {}}));
    device_.ports.emplace_back();
    port().name = device_.name;
  }

  // The number of lines that mean something.
  std::size_t read(std::string_view text) {
    std::size_t known = 0;
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = trimmed(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number;
      if (line.empty()) continue;
      if (read_line(line))
        ++known;
      else
        report_.unparsed.push_back(
            {device_.name, fmt::format("{}:{}", path_, number), std::string(line.substr(0, kShownText))});
    }
    finish();
    return known;
  }

 private:
  Port& port() { return device_.ports.front(); }
  void add(std::string_view rule, Severity severity, const std::string& place, const std::string& message,
           const std::string& fix) {
    report_.findings.push_back({std::string(rule), severity, device_.name, place, message, fix});
  }

  bool read_line(std::string_view line) {
    if (line.starts_with(kTrust)) {
      trust_ = trimmed(line.substr(kTrust.size()));
      return true;
    }
    if (line.starts_with(kDcbx)) {
      dcbx_ = trimmed(line.substr(kDcbx.size()));
      return true;
    }
    if (line.starts_with("prio:") && line.find("dscp:") != std::string_view::npos) return read_dscps(line);
    if (line.starts_with("enabled")) return read_pfc(line);
    if (line.starts_with("tc:")) return read_class(line);
    if (line.starts_with("priority:")) return read_priorities(line);
    if (line.starts_with("Cable len:")) {
      if (const auto metres = numbers(line); metres.size() == 1) port().cable_metres = metres[0];
      return true;
    }
    constexpr std::string_view kHeads[] = {"dscp2prio mapping", "default priority", "Receive buffer size",
                                           "PFC configuration", "priority ",        "buffer ",
                                           "PFC delay"};
    return std::any_of(std::begin(kHeads), std::end(kHeads), [&](auto head) { return line.starts_with(head); });
  }

  bool read_dscps(std::string_view line) {
    const std::size_t split = line.find("dscp:");
    const auto priority = numbers(line.substr(0, split));
    if (priority.size() != 1 || priority[0] >= kPriorities) return false;
    for (const unsigned dscp : numbers(line.substr(split))) {
      if (dscp >= 64) return false;
      device_.maps[0]->to[dscp] = static_cast<std::uint8_t>(priority[0]);
      mapped_ = true;
    }
    return true;
  }

  bool read_pfc(std::string_view line) {
    const auto enabled = numbers(line);
    if (enabled.size() != kPriorities) return false;
    PrioritySet set = 0;
    for (std::size_t p = 0; p < kPriorities; ++p)
      if (enabled[p] != 0) set = static_cast<PrioritySet>(set | 1u << p);
    port().pfc = set;
    port().pfc_place = "PFC configuration";
    return true;
  }

  bool read_class(std::string_view line) {
    const auto number = numbers(line.substr(0, line.find("ratelimit")));
    const auto algorithm = value_of(line, "tsa:");
    if (number.empty() || number[0] >= kPriorities || !algorithm) return false;
    class_ = number[0];
    algorithms_[class_] = *algorithm;
    if (const auto percent = value_of(line, "bw:")) {
      const auto value = numbers(*percent);
      if (value.size() != 1) return false;
      percents_[class_] = value[0];
    }
    return true;
  }

  bool read_priorities(std::string_view line) {
    for (const unsigned priority : numbers(line)) {
      if (priority >= kPriorities || class_ >= kPriorities) return false;
      classes_[priority] = class_;
    }
    return true;
  }

  void finish() {
    if (mapped_ && trust_ == "dscp") port().dscp_to_class = device_.maps[0].get();
    const PrioritySet pfc = port().pfc.value_or(0);
    if (pfc == 0) return;
    if (!trust_.empty() && trust_ != "dscp")
      add("L10", Severity::kWarning, "Priority trust state",
          fmt::format("the NIC trusts {}, so that routed packets without a VLAN tag lose their class", trust_),
          "run mlnx_qos --trust dscp");
    if (dcbx_.starts_with("Firmware"))
      add("L10", Severity::kWarning, "DCBX mode",
          "the firmware takes settings from the switch by DCBX and may undo these", "run mlnx_qos -d os");
    check_shared(pfc);
    check_bandwidths(pfc);
  }

  void check_shared(PrioritySet pfc) {
    for (std::size_t p = 0; p < kPriorities; ++p)
      for (std::size_t q = 0; q < kPriorities; ++q)
        if (has(pfc, p) && !has(pfc, q) && classes_[p] && classes_[p] == classes_[q])
          add("L2", Severity::kWarning, fmt::format("tc: {}", *classes_[p]),
              fmt::format("lossy priority {} shares the queue of lossless priority {}, which a pause stops", q, p),
              "give every priority a traffic class of its own with --prio_tc");
  }

  void check_bandwidths(PrioritySet pfc) {
    unsigned sum = 0;
    bool weighted = false;
    for (std::size_t tc = 0; tc < kPriorities; ++tc) {
      if (algorithms_[tc] != "ets") continue;
      weighted = true;
      sum += std::min(percents_[tc].value_or(0), 1000u);
    }
    if (weighted && sum != 100)
      add("L9", Severity::kError, "tsa: ets", fmt::format("the bandwidths of its classes sum up to {} percent", sum),
          "let them be 100 with --tcbw");
    for (std::size_t p = 0; p < kPriorities; ++p)
      if (has(pfc, p) && classes_[p] && algorithms_[*classes_[p]] == "vendor")
        add("L9", Severity::kWarning, fmt::format("tc: {}", *classes_[p]),
            fmt::format("lossless priority {} is served as the vendor likes, in one group with others", p),
            "say strict or ets with --tsa");
  }

  const std::string& path_;
  Device& device_;
  Report& report_;
  std::string trust_, dcbx_;
  bool mapped_ = false;
  unsigned class_ = kPriorities;
  std::array<std::string, kPriorities> algorithms_;
  std::array<std::optional<unsigned>, kPriorities> percents_, classes_;
};

}  // namespace

bool is_mlnx_qos(std::string_view text) {
  return text.find(kTrust) != std::string_view::npos;
}

Result<Device> parse_mlnx_qos(std::string_view text, const std::string& path, const std::string& name,
                              findings::Report& report) {
  Device device;
  device.name = name;
  device.place = path;
  device.is_host = true;
  if (Output(path, device, report).read(text) == 0)
    return Status(Code::kInvalidArgument, "no line of it is from mlnx_qos", path, "give what `mlnx_qos -i IF` printed");
  return device;
}

}  // namespace tensorlane::lint
