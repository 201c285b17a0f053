#include <array>
#include <charconv>

#include <fmt/format.h>

#include "common/fabric/fabric.h"

namespace tensorlane::fabric {

namespace {

// Names and addresses may look like numbers or hold colons; nothing that load() accepts needs an escape.
std::string quoted(std::string_view text) {
  return fmt::format("\"{}\"", text);
}

std::string class_yaml(const TrafficClass& cls, bool with_rank) {
  std::string text = fmt::format("{{name: {}, dscp: {}, pcp: {}, service_level: {}, lossless: {}", quoted(cls.name),
                                 cls.dscp, cls.pcp, cls.service_level, cls.lossless);
  if (with_rank) text += fmt::format(", rank: {}", cls.rank);
  if (cls.window) text += fmt::format(", window: {}", format_bytes(*cls.window));
  return text + "}";
}

// One rail needs no list.
std::string rails_yaml(const std::vector<std::string>& rails) {
  std::string text;
  for (const std::string& address : rails) text += fmt::format("{}{}", text.empty() ? "" : ", ", quoted(address));
  return rails.size() == 1 ? text : fmt::format("[{}]", text);
}

std::string host_yaml(const Host& host) {
  std::string addresses;
  for (const auto& [transport, rails] : host.addresses) {
    if (!addresses.empty()) addresses += ", ";
    addresses += fmt::format("{}: {}", transport, rails_yaml(rails));
  }
  std::string text = fmt::format("  - name: {}\n    addresses: {{{}}}\n    control_port: {}\n    data_port: {}\n",
                                 quoted(host.name), addresses, host.control_port, host.data_port);
  if (!host.public_key.empty()) text += fmt::format("    public_key: {}\n", quoted(host.public_key));
  return text;
}

// As short as reads back to the same number, and without an exponent, which lengths in the file do not have.
std::string decimal(double number) {
  std::array<char, 512> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed).ptr;
  return {digits.data(), end};
}

std::string link_yaml(const Link& link) {
  std::string text = fmt::format("  - {{from: {}, to: {}, speed: {}, cable: {} m, mtu: {}", quoted(link.from),
                                 quoted(link.to), format_rate(link.speed), decimal(link.cable_metres), link.mtu);
  if (link.buffer) text += fmt::format(", buffer: {}", format_bytes(*link.buffer));
  return text + "}\n";
}

}  // namespace

std::string to_yaml(const Fabric& fabric) {
  std::string text = "classes:\n  data:\n";
  for (const TrafficClass& cls : fabric.classes.data) text += fmt::format("    - {}\n", class_yaml(cls, true));
  text += fmt::format("  control: {}\n", class_yaml(fabric.classes.control, false));
  std::string thresholds;
  for (double threshold : fabric.classes.thresholds)
    thresholds += fmt::format("{}{}", thresholds.empty() ? "" : ", ", threshold);
  text += fmt::format("  thresholds: [{}]\n", thresholds);
  text += "hosts:\n";
  for (const Host& host : fabric.hosts) text += host_yaml(host);
  if (!fabric.switches.empty()) text += "switches:\n";
  for (const Switch& sw : fabric.switches) text += fmt::format("  - {{name: {}}}\n", quoted(sw.name));
  if (!fabric.links.empty()) text += "links:\n";
  for (const Link& link : fabric.links) text += link_yaml(link);
  return text;
}

}  // namespace tensorlane::fabric
