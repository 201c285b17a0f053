// The sections 'switches' and 'links' of fabric.yaml, and what ports and links say about each other.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 7> kSwitchKeys{"name", "nos",   "release",  "platform",
                                                      "role", "ports", "addresses"};
constexpr std::array<std::string_view, 7> kPlatformKeys{"name",   "asic",     "buffer",  "port_headroom",
                                                        "queues", "lossless", "evidence"};
constexpr std::array<std::string_view, 3> kPortKeys{"name", "speed", "lanes"};
constexpr std::array<std::string_view, 8> kLinkKeys{"from",  "from_port", "to",  "to_port",
                                                    "speed", "cable",     "mtu", "buffer"};
constexpr std::size_t kMaxEvidence = 200;
constexpr std::size_t kMaxAddresses = 4096;  // of a switch

// --- switches

// Free text for people, which is written nowhere but back to fabric.yaml.
bool is_evidence(std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  return text.size() <= kMaxEvidence && std::all_of(text.begin(), text.end(), plain);
}

Result<Platform> read_platform(const Mapping& sw, const std::string& subject) {
  Platform platform;
  if (!sw.get("platform").IsMap()) {
    TL_ASSIGN_OR_RETURN(platform.name, sw.name("platform"));
    return platform;
  }
  TL_ASSIGN_OR_RETURN(const Mapping map,
                      Mapping::open(sw.path(), sw.get("platform"), "'platform' of " + subject, kPlatformKeys));
  if (map.has("name")) {
    TL_ASSIGN_OR_RETURN(platform.name, map.name("name"));
  }
  if (map.has("asic")) {
    TL_ASSIGN_OR_RETURN(platform.asic, map.name("asic"));
  }
  if (map.has("buffer")) {
    TL_ASSIGN_OR_RETURN(platform.buffer, map.bytes("buffer"));
  }
  if (map.has("port_headroom")) {
    TL_ASSIGN_OR_RETURN(platform.port_headroom, map.bytes("port_headroom"));
  }
  if (map.has("queues")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t queues, map.number("queues", 1, 8));
    platform.queues = static_cast<std::uint8_t>(queues);
  }
  if (map.has("lossless")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t lossless, map.number("lossless", 0, 8));
    platform.lossless = static_cast<std::uint8_t>(lossless);
  }
  if (map.has("evidence")) {
    TL_ASSIGN_OR_RETURN(platform.evidence, map.text("evidence"));
    if (!is_evidence(platform.evidence))
      return map.wrong("evidence", fmt::format("expected a line of at most {} plain characters", kMaxEvidence));
  }
  return platform;
}

// A lane carries one of these rates, and 1, 2, 4 or 8 lanes make a port.
bool lanes_carry(BitsPerSecond speed, std::uint64_t lanes) {
  constexpr std::array<std::uint64_t, 8> kLaneMegabits{1000, 2500, 5000, 10000, 25000, 50000, 100000, 200000};
  return std::any_of(kLaneMegabits.begin(), kLaneMegabits.end(),
                     [&](std::uint64_t lane) { return lane * 1'000'000 * lanes == speed.value; });
}

Result<std::vector<Port>> read_ports(const std::string& path, const YAML::Node& node) {
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, "a port", kPortKeys));
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> names, map.ports("name"));
  Port common;
  common.line = map.line();
  if (map.has("speed")) {
    TL_ASSIGN_OR_RETURN(common.speed, map.rate("speed"));
  }
  if (map.has("lanes")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t lanes, map.number("lanes", 1, 8));
    if (lanes != 1 && lanes != 2 && lanes != 4 && lanes != 8) return map.wrong("lanes", "expected 1, 2, 4 or 8");
    if (common.speed && !lanes_carry(*common.speed, lanes))
      return map.wrong("lanes", fmt::format("expected lanes of 1, 2.5, 5, 10, 25, 50, 100 or 200 Gbit/s that make {}",
                                            format_rate(*common.speed)));
    common.lanes = static_cast<std::uint8_t>(lanes);
  }
  std::vector<Port> ports(names.size(), common);
  for (std::size_t i = 0; i < names.size(); ++i) ports[i].name = names[i];
  return ports;
}

// As the kernel writes them, so that an answer of the switch is recognised.
Result<std::vector<std::string>> read_switch_addresses(const Mapping& map, std::size_t switches) {
  if (switches > 1) return map.wrong("addresses", "expected the addresses of one switch, and no pattern in its name");
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list("addresses"));
  std::vector<std::string> addresses;
  for (const YAML::Node& item : list) {
    std::array<unsigned char, sizeof(in6_addr)> binary{};
    std::array<char, INET6_ADDRSTRLEN> text{};
    const std::string written = item.IsScalar() ? item.Scalar() : "";
    const int family = written.find(':') == std::string::npos ? AF_INET : AF_INET6;
    if (addresses.size() == kMaxAddresses || ::inet_pton(family, written.c_str(), binary.data()) != 1)
      return map.wrong("addresses", fmt::format("expected numeric addresses, {} at most", kMaxAddresses));
    addresses.emplace_back(::inet_ntop(family, binary.data(), text.data(), text.size()));
  }
  return addresses;
}

Result<std::vector<Switch>> read_switch_entry(const std::string& path, const YAML::Node& node) {
  std::string subject = "a switch";
  if (node.IsMap() && node["name"] && node["name"].IsScalar())
    subject = fmt::format("switch '{}'", node["name"].Scalar());
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, subject, kSwitchKeys));
  Switch common;
  common.line = map.line();
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> names, map.names("name"));
  if (map.has("nos")) {
    TL_ASSIGN_OR_RETURN(const std::size_t nos, map.one_of("nos", kNosNames));
    common.nos = static_cast<Nos>(nos);
  }
  if (map.has("release")) {
    TL_ASSIGN_OR_RETURN(common.release, map.name("release"));
  }
  if (map.has("platform")) {
    TL_ASSIGN_OR_RETURN(common.platform, read_platform(map, subject));
  }
  if (map.has("role")) {
    TL_ASSIGN_OR_RETURN(const std::size_t role, map.one_of("role", std::span(kRoleNames).subspan(1)));
    common.role = static_cast<Role>(role + 1);
  }
  TL_ASSIGN_OR_RETURN(common.ports, read_list<Port>(map, "ports", read_ports));
  if (map.has("addresses")) {
    TL_ASSIGN_OR_RETURN(common.addresses, read_switch_addresses(map, names.size()));
  }
  if (common.ports.size() * names.size() > kMaxItems)
    return error(fmt::format("more than {} ports in {}", kMaxItems, subject), map.place("ports"),
                 "expected no more in one file");
  std::vector<Switch> switches(names.size(), common);
  for (std::size_t i = 0; i < names.size(); ++i) switches[i].name = names[i];
  return switches;
}

// --- links

// Beside each other, the longest pattern says how many links there are; shorter ones repeat.
Result<std::vector<Link>> read_link(const std::string& path, const YAML::Node& node) {
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, "a link", kLinkKeys));
  Link common;
  common.line = map.line();
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> from, map.names("from"));
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> to, map.names("to"));
  std::vector<std::string> from_port{""}, to_port{""};
  if (map.has("from_port")) {
    TL_ASSIGN_OR_RETURN(from_port, map.ports("from_port"));
  }
  if (map.has("to_port")) {
    TL_ASSIGN_OR_RETURN(to_port, map.ports("to_port"));
  }
  TL_ASSIGN_OR_RETURN(common.speed, map.rate("speed"));
  if (map.has("cable")) {
    TL_ASSIGN_OR_RETURN(common.cable_metres, map.metres("cable"));
  }
  if (map.has("mtu")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t mtu, map.number("mtu", 576, 65535));
    common.mtu = static_cast<std::uint32_t>(mtu);
  }
  if (map.has("buffer")) {
    TL_ASSIGN_OR_RETURN(common.buffer, map.bytes("buffer"));
  }
  const std::size_t count = std::max({from.size(), to.size(), from_port.size(), to_port.size()});
  const auto check = [&](const char* key, const std::vector<std::string>& texts) -> Status {
    if (count % texts.size() == 0) return Status::ok_status();
    return map.wrong(
        key, fmt::format("expected a pattern whose {} names divide the {} links of this entry", texts.size(), count));
  };
  TL_RETURN_IF_ERROR(check("from", from));
  TL_RETURN_IF_ERROR(check("to", to));
  TL_RETURN_IF_ERROR(check("from_port", from_port));
  TL_RETURN_IF_ERROR(check("to_port", to_port));
  std::vector<Link> links(count, common);
  for (std::size_t i = 0; i < count; ++i) {
    links[i].from = from[i % from.size()];
    links[i].to = to[i % to.size()];
    links[i].from_port = from_port[i % from_port.size()];
    links[i].to_port = to_port[i % to_port.size()];
  }
  return links;
}

// --- ports and links

using PortsByName = std::unordered_map<std::string_view, const Port*>;

// The listed ports of every switch that lists any.
Result<std::unordered_map<std::string_view, PortsByName>> listed_ports(const Fabric& fabric) {
  std::unordered_map<std::string_view, PortsByName> listed;
  for (const Switch& sw : fabric.switches) {
    if (sw.ports.empty()) continue;
    PortsByName& ports = listed[sw.name];
    for (const Port& port : sw.ports) {
      const auto [first, inserted] = ports.emplace(port.name, &port);
      if (!inserted)
        return error(fmt::format("doubled port '{}' of switch '{}'", port.name, sw.name), at_line(fabric, port.line),
                     fmt::format("the other one is on line {}; list it once", first->second->line));
    }
  }
  return listed;
}

// One end of a link.
struct End {
  const std::string& device;
  const std::string& port;
};

Status check_listed(const Fabric& fabric, const Link& link, const End& end, const PortsByName& ports) {
  const auto found = ports.find(end.port);
  if (found == ports.end()) {
    std::vector<std::string_view> known;
    for (const auto& [name, port] : ports) known.push_back(name);
    std::sort(known.begin(), known.end());
    return error(fmt::format("a link at port '{}' of switch '{}', which is not listed", end.port, end.device),
                 at_line(fabric, link.line), suggestion(end.port, known) + "expected one of the switch's 'ports'");
  }
  const Port& port = *found->second;
  if (!port.speed || *port.speed == link.speed) return Status::ok_status();
  return error(fmt::format("a link of {} at port '{}' of switch '{}'", format_rate(link.speed), end.port, end.device),
               at_line(fabric, link.line),
               fmt::format("line {} says that the port has {}", port.line, format_rate(*port.speed)));
}

}  // namespace

Result<std::vector<Switch>> read_switches(const Mapping& file) {
  TL_ASSIGN_OR_RETURN(std::vector<Switch> switches, read_list<Switch>(file, "switches", read_switch_entry));
  std::size_t ports = 0;
  for (const Switch& sw : switches) ports += sw.ports.size();
  if (ports <= kMaxItems) return switches;
  return error(fmt::format("{} ports", ports), file.place("switches"),
               fmt::format("expected at most {} in one file", kMaxItems));
}

Result<std::vector<Link>> read_links(const Mapping& file) {
  return read_list<Link>(file, "links", read_link);
}

Status check_link_ports(const Fabric& fabric) {
  TL_ASSIGN_OR_RETURN(const auto listed, listed_ports(fabric));
  using Place = std::pair<std::string_view, std::string_view>;
  std::map<Place, int> taken;
  for (const Link& link : fabric.links) {
    for (const End& end : {End{link.from, link.from_port}, End{link.to, link.to_port}}) {
      if (end.port.empty()) continue;
      const auto [first, inserted] = taken.emplace(Place(end.device, end.port), link.line);
      if (!inserted)
        return error(fmt::format("port '{}' of '{}' is in two links", end.port, end.device), at_line(fabric, link.line),
                     fmt::format("the other one is on line {}; expected one link at every port", first->second));
      const auto ports = listed.find(end.device);
      if (ports != listed.end()) TL_RETURN_IF_ERROR(check_listed(fabric, link, end, ports->second));
    }
  }
  return Status::ok_status();
}

}  // namespace tensorlane::fabric
