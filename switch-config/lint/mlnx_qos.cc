#include "switch-config/lint/mlnx_qos.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "switch-config/lint/host.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

using findings::Report;
using findings::Severity;

constexpr std::string_view kTrust = "Priority trust state:";
constexpr std::string_view kOldTrust = "Priority trust mode:";  // of older OFED
constexpr std::string_view kDcbx = "DCBX mode:";
constexpr std::size_t kShownText = 80;

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

// "unlimited", "40.0 Gbps"
std::optional<BitsPerSecond> rate_of(std::string_view text) {
  if (text == "unlimited") return BitsPerSecond(0);
  const auto value = numbers(text);
  if (value.empty() || value[0] > 100'000 || text.find("Gbps") == std::string_view::npos) return std::nullopt;
  const std::uint64_t tenths = value.size() > 1 ? std::min(value[1], 9u) : 0;
  return BitsPerSecond((value[0] * std::uint64_t{10} + tenths) * 100'000'000);
}

class Output {
 public:
  Output(const std::string& path, Device& device, Report& report)
      : path_(path), device_(device), report_(report), context_(path, device, report) {
    device_.maps.push_back(std::make_unique<Map>(Map{"dscp2prio", 64, {}}));
    device_.maps.front()->has_preset = true;  // the NIC's own
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
      if (line.starts_with("/sys/") ? read_host_file({number, 0, line, words_of(line)}, host_, context_)
                                    : read_line(line))
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
    if (line.starts_with(kOldTrust)) {
      trust_ = trimmed(line.substr(kOldTrust.size()));
      if (trust_ == "none") trust_ = "pcp";
      return true;
    }
    if (line.starts_with(kDcbx)) {
      dcbx_ = trimmed(line.substr(kDcbx.size()));
      return true;
    }
    if (line.starts_with("prio:") && line.find("dscp:") != std::string_view::npos) return read_dscps(line);
    if (line.starts_with("enabled")) return read_pfc(line);
    if (line.starts_with("tc:")) return read_class(line);
    if (line.starts_with("priority:") || line.starts_with("up:")) return read_priorities(line);
    if (line.starts_with("Cable len:")) {
      if (const auto metres = numbers(line); metres.size() == 1) port().cable_metres = metres[0];
      return true;
    }
    if (line.starts_with("Receive buffer size")) return read_sizes(line);
    if (line.starts_with("buffer ")) return read_buffers(line);
    constexpr std::string_view kHeads[] = {"dscp2prio mapping", "default priority", "PFC configuration",
                                           "priority ",         "PFC delay",        "skprio:"};
    if (line.find("mlnx_qos -i") != std::string_view::npos) return true;  // the command itself
    return std::any_of(std::begin(kHeads), std::end(kHeads), [&](auto head) { return line.starts_with(head); });
  }

  bool read_dscps(std::string_view line) {
    const std::size_t split = line.find("dscp:");
    const auto priority = numbers(line.substr(0, split));
    if (priority.size() != 1 || priority[0] >= kPriorities) return false;
    for (const unsigned dscp : numbers(line.substr(split))) {
      if (dscp >= 64) return false;
      device_.maps[0]->to[dscp] = static_cast<std::uint8_t>(priority[0]);
      device_.maps[0]->said[dscp] = true;
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

  // "Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=...": the sum is not checked, since what
  // else the NIC keeps is unknown.
  bool read_sizes(std::string_view line) {
    const auto sizes = numbers(line.substr(std::min(line.find(':'), line.size())));
    if (sizes.size() < kPriorities) return false;
    for (std::size_t i = 0; i < kPriorities; ++i) host_.buffer_sizes[i] = sizes[i];
    return true;
  }

  bool read_buffers(std::string_view line) {
    const auto buffers = numbers(line);
    if (buffers.size() != kPriorities) return false;
    for (std::size_t p = 0; p < kPriorities; ++p) host_.buffers[p] = buffers[p];
    return true;
  }

  bool read_class(std::string_view line) {
    const auto number = numbers(line.substr(0, line.find("ratelimit")));
    const auto algorithm = value_of(line, "tsa:");
    if (number.empty() || number[0] >= kPriorities || !algorithm) return false;
    class_ = number[0];
    host_.algorithms[class_] = *algorithm;
    if (const auto rate = value_of(line, "ratelimit:")) host_.rates[class_] = rate_of(*rate);
    if (const auto percent = value_of(line, "bw:")) {
      const auto value = numbers(*percent);
      if (value.size() != 1) return false;
      host_.percents[class_] = value[0];
    }
    return true;
  }

  bool read_priorities(std::string_view line) {
    for (const unsigned priority : numbers(line)) {
      if (priority >= kPriorities || class_ >= kPriorities) return false;
      host_.classes[priority] = class_;
    }
    return true;
  }

  void finish() {
    if (mapped_ && trust_ == "dscp") port().dscp_to_class = device_.maps[0].get();
    add_classes(host_, device_);
    const PrioritySet pfc = port().pfc.value_or(0);
    if (pfc == 0) return;
    if (!host_.untrusted.empty())
      add("L10", Severity::kWarning, host_.untrusted, "the NIC does not trust DSCP", "write dscp");
    if (!trust_.empty() && trust_ != "dscp")
      add("L10", Severity::kWarning, "Priority trust state",
          fmt::format("the NIC trusts {}, so that routed packets without a VLAN tag lose their class", trust_),
          "run mlnx_qos --trust dscp");
    if (dcbx_.starts_with("Firmware"))
      add("L10", Severity::kWarning, "DCBX mode",
          "the firmware takes settings from the switch by DCBX and may undo these", "run mlnx_qos -d os");
    host_.bandwidth_place = "tsa: ets";
    host_.buffer_place = "PFC configuration";
    host_.size_place = "Receive buffer size";
    for (std::size_t tc = 0; tc < kPriorities; ++tc)
      host_.class_places[tc] = host_.algorithm_places[tc] = fmt::format("tc: {}", tc);
    check_host(host_, context_);
  }

  const std::string& path_;
  Device& device_;
  Report& report_;
  Context context_;
  HostSettings host_;
  std::string trust_, dcbx_;
  bool mapped_ = false;
  unsigned class_ = kPriorities;
};

}  // namespace

bool is_mlnx_qos(std::string_view text) {
  const auto has_line = [&](std::string_view begin) {
    return text.starts_with(begin) || text.find(fmt::format("\n{}", begin)) != std::string_view::npos;
  };
  return has_line(kTrust) || has_line(kOldTrust) || (has_line("PFC configuration:") && has_line("tc: "));
}

Result<Device> parse_mlnx_qos(std::string_view text, const std::string& path, const std::string& name,
                              findings::Report& report) {
  TL_RETURN_IF_ERROR(lines_of(text, path, "").status());  // refuses what is no text
  Device device = new_device(name, path, "mlnx_qos");
  device.is_host = true;
  if (Output(path, device, report).read(text) == 0)
    return Status(Code::kInvalidArgument, "no line of it is from mlnx_qos", path, "give what `mlnx_qos -i IF` printed");
  return device;
}

}  // namespace tensorlane::lint
