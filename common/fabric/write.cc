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

std::string list_yaml(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += fmt::format("{}{}", list.empty() ? "" : ", ", quoted(text));
  return list;
}

// One rail needs no list.
std::string rails_yaml(const std::vector<std::string>& rails) {
  return rails.size() == 1 ? list_yaml(rails) : fmt::format("[{}]", list_yaml(rails));
}

// As short as reads back to the same number, and without an exponent, which lengths in the file do not have.
std::string decimal(double number) {
  std::array<char, 512> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed).ptr;
  return {digits.data(), end};
}

std::string duration_yaml(Duration duration) {
  return decimal(to_seconds(duration)) + " s";
}

std::string host_yaml(const Host& host) {
  std::string addresses;
  for (const auto& [transport, rails] : host.addresses) {
    if (!addresses.empty()) addresses += ", ";
    addresses += fmt::format("{}: {}", transport, rails_yaml(rails));
  }
  std::string text = fmt::format("  - name: {}\n    addresses: {{{}}}\n    control_port: {}\n    data_port: {}\n",
                                 quoted(host.name), addresses, host.control_port, host.data_port);
  if (!host.rdma_devices.empty()) text += fmt::format("    rdma_devices: [{}]\n", list_yaml(host.rdma_devices));
  if (host.retry_budget) text += fmt::format("    retry_budget: {}\n", duration_yaml(*host.retry_budget));
  if (!host.public_key.empty()) text += fmt::format("    public_key: {}\n", quoted(host.public_key));
  return text;
}

std::string platform_yaml(const Platform& platform) {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  };
  if (!platform.name.empty()) add("name", quoted(platform.name));
  if (!platform.asic.empty()) add("asic", quoted(platform.asic));
  if (platform.buffer) add("buffer", format_bytes(*platform.buffer));
  if (platform.port_headroom) add("port_headroom", format_bytes(*platform.port_headroom));
  if (platform.queues) add("queues", fmt::format("{}", *platform.queues));
  if (platform.lossless) add("lossless", fmt::format("{}", *platform.lossless));
  if (!platform.evidence.empty()) add("evidence", quoted(platform.evidence));
  return text;
}

std::string switch_yaml(const Switch& sw) {
  std::string text = fmt::format("  - name: {}\n", quoted(sw.name));
  if (sw.nos) text += fmt::format("    nos: {}\n", nos_name(*sw.nos));
  if (!sw.release.empty()) text += fmt::format("    release: {}\n", quoted(sw.release));
  if (sw.role != Role::kUnset) text += fmt::format("    role: {}\n", kRoleNames[static_cast<std::size_t>(sw.role)]);
  if (const std::string platform = platform_yaml(sw.platform); !platform.empty())
    text += fmt::format("    platform: {{{}}}\n", platform);
  if (!sw.addresses.empty()) {
    text += "    addresses: [";
    for (const std::string& address : sw.addresses)
      text += fmt::format("{}{}", &address == sw.addresses.data() ? "" : ", ", quoted(address));
    text += "]\n";
  }
  if (!sw.ports.empty()) text += "    ports:\n";
  for (const Port& port : sw.ports) {
    text += fmt::format("      - {{name: {}", quoted(port.name));
    if (port.speed) text += fmt::format(", speed: {}", format_rate(*port.speed));
    if (port.lanes != 0) text += fmt::format(", lanes: {}", port.lanes);
    text += "}\n";
  }
  return text;
}

std::string link_yaml(const Link& link) {
  std::string text = fmt::format("  - {{from: {}, to: {}", quoted(link.from), quoted(link.to));
  if (!link.from_port.empty()) text += fmt::format(", from_port: {}", quoted(link.from_port));
  if (!link.to_port.empty()) text += fmt::format(", to_port: {}", quoted(link.to_port));
  text +=
      fmt::format(", speed: {}, cable: {} m, mtu: {}", format_rate(link.speed), decimal(link.cable_metres), link.mtu);
  if (link.buffer) text += fmt::format(", buffer: {}", format_bytes(*link.buffer));
  return text + "}\n";
}

std::string service_yaml(const ClassService& service) {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  };
  if (service.strict) add("strict", fmt::format("{}", *service.strict));
  if (service.shaper_percent) add("shaper", fmt::format("{} %", *service.shaper_percent));
  if (service.weight_percent) add("weight", fmt::format("{} %", *service.weight_percent));
  if (service.ecn)
    add("ecn", fmt::format("{{kmin: {}, kmax: {}, pmax: {} %}}", format_bytes(service.ecn->kmin),
                           format_bytes(service.ecn->kmax), service.ecn->pmax_percent));
  return text;
}

std::string headroom_yaml(const HeadroomOptions& headroom) {
  std::string text =
      fmt::format("    formula: {}\n    lossless_mtu: {}\n    small_packets: {} %\n    shared_headroom: {}\n",
                  headroom.formula == HeadroomOptions::Formula::kOlder ? "older" : "current", headroom.lossless_mtu,
                  headroom.small_packets_percent, headroom.shared_headroom);
  if (headroom.port_mtu) text += fmt::format("    port_mtu: {}\n", *headroom.port_mtu);
  if (headroom.accept_estimate) text += "    accept_estimate: true\n";
  if (!headroom.lookup.empty()) text += fmt::format("    lookup: {}\n", quoted(headroom.lookup));
  return text;
}

std::string qos_yaml(const Qos& qos) {
  std::string text = "qos:\n  classes:\n";
  std::string cnp = fmt::format("dscp: {}", qos.cnp_dscp);
  if (qos.cnp_pcp) cnp += fmt::format(", pcp: {}", *qos.cnp_pcp);
  for (const auto& [name, service] : qos.services) {
    if (name != "cnp") text += fmt::format("    {}: {{{}}}\n", quoted(name), service_yaml(service));
  }
  const auto own = qos.services.find("cnp");
  if (own != qos.services.end() && !service_yaml(own->second).empty()) cnp += ", " + service_yaml(own->second);
  text += fmt::format("    cnp: {{{}}}\n  headroom:\n{}", cnp, headroom_yaml(qos.headroom));
  const Watchdog& watchdog = qos.watchdog;
  text +=
      fmt::format("  watchdog: {{poll: {}, detection: {}, restoration: {}, action: {}}}\n",
                  duration_yaml(watchdog.poll), duration_yaml(watchdog.detection), duration_yaml(watchdog.restoration),
                  watchdog.action == Watchdog::Action::kDrop ? "drop" : "forward");
  text += fmt::format("  head_of_line_lifetime: {}\n  retry_budget: {}\n", duration_yaml(qos.head_of_line_lifetime),
                      duration_yaml(qos.retry_budget));
  return text;
}

std::string routing_yaml(const Routing& routing) {
  std::string text = fmt::format("routing:\n  mode: {}\n", routing.up_down ? "up-down" : "routes");
  const auto add = [&](const char* key, const std::vector<Routing::Route>& routes) {
    if (!routes.empty()) text += fmt::format("  {}:\n", key);
    for (const Routing::Route& route : routes) text += fmt::format("    - [{}]\n", list_yaml(route.hops));
  };
  add("routes", routing.routes);
  add("flooding", routing.flooding);
  return text;
}

std::string urgencies_yaml(const Urgencies& urgencies) {
  if (urgencies.rules.empty()) return "urgencies: []\n";
  std::string text = "urgencies:\n";
  for (const UrgencyRule& rule : urgencies.rules) {
    text += fmt::format("  - {{job: {}, tensor: {}", quoted(rule.job), quoted(rule.tensor));
    if (rule.operation) text += fmt::format(", operation: {}", operation_name(*rule.operation));
    if (rule.at_least.value > 0) text += fmt::format(", at_least: {}", format_bytes(rule.at_least));
    if (rule.at_most) text += fmt::format(", at_most: {}", format_bytes(*rule.at_most));
    text += fmt::format(", urgency: {}}}\n", rule.urgency);
  }
  return text;
}

std::string nccl_yaml(const NcclPolicy& policy) {
  std::string text = "nccl:\n";
  if (!policy.groups.empty()) text += "  groups:\n";
  for (const GroupRule& rule : policy.groups) {
    text += fmt::format("    - {{group: {}, class: {}", quoted(rule.group), quoted(rule.cls));
    if (rule.operation) text += fmt::format(", operation: {}", operation_name(*rule.operation));
    if (rule.at_least) text += fmt::format(", at_least: {}", format_bytes(*rule.at_least));
    if (rule.at_most) text += fmt::format(", at_most: {}", format_bytes(*rule.at_most));
    text += "}\n";
  }
  if (!policy.mixed.empty()) text += fmt::format("  mixed: {}\n", quoted(policy.mixed));
  if (!policy.clear_to_send.empty()) text += fmt::format("  clear_to_send: {}\n", quoted(policy.clear_to_send));
  text += fmt::format("  separate_reduce_scatter: {}\n  dropped: {}\n", policy.separate_reduce_scatter,
                      policy.refuse_dropped ? "refuse" : "report");
  if (!policy.environment.empty()) text += "  environment:\n";
  for (const auto& [name, value] : policy.environment)
    text += fmt::format("    {}: {}\n", name, value ? quoted(*value) : "null");
  return text;
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
  if (fabric.data_protection != DataProtection::kNone)
    text += fmt::format("data_protection: {}\n", data_protection_name(fabric.data_protection));
  text += "hosts:\n";
  for (const Host& host : fabric.hosts) text += host_yaml(host);
  if (!fabric.switches.empty()) text += "switches:\n";
  for (const Switch& sw : fabric.switches) text += switch_yaml(sw);
  if (!fabric.links.empty()) text += "links:\n";
  for (const Link& link : fabric.links) text += link_yaml(link);
  if (fabric.qos.line != 0) text += qos_yaml(fabric.qos);
  if (fabric.routing.line != 0) text += routing_yaml(fabric.routing);
  if (fabric.urgencies.line != 0) text += urgencies_yaml(fabric.urgencies);
  if (fabric.nccl.line != 0) text += nccl_yaml(fabric.nccl);
  return text;
}

}  // namespace tensorlane::fabric
