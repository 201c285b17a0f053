// The sections 'qos' and 'routing' of fabric.yaml.
#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 5> kQosKeys{"classes", "headroom", "watchdog", "head_of_line_lifetime",
                                                   "retry_budget"};
constexpr std::array<std::string_view, 4> kServiceKeys{"strict", "shaper", "weight", "ecn"};
constexpr std::array<std::string_view, 6> kCnpKeys{"strict", "shaper", "weight", "ecn", "dscp", "pcp"};
constexpr std::array<std::string_view, 3> kEcnKeys{"kmin", "kmax", "pmax"};
constexpr std::array<std::string_view, 7> kHeadroomKeys{
    "formula", "port_mtu", "lossless_mtu", "small_packets", "shared_headroom", "lookup", "accept_estimate"};
constexpr std::array<std::string_view, 2> kFormulas{"current", "older"};
constexpr std::array<std::string_view, 4> kWatchdogKeys{"poll", "detection", "restoration", "action"};
constexpr std::array<std::string_view, 2> kActions{"drop", "forward"};
constexpr std::array<std::string_view, 3> kRoutingKeys{"mode", "routes", "flooding"};
constexpr std::array<std::string_view, 2> kModes{"up-down", "routes"};

Result<EcnThresholds> read_ecn(const Mapping& service, const std::string& subject) {
  TL_ASSIGN_OR_RETURN(const Mapping map,
                      Mapping::open(service.path(), service.get("ecn"), "'ecn' of " + subject, kEcnKeys));
  EcnThresholds ecn;
  TL_ASSIGN_OR_RETURN(ecn.kmin, map.bytes("kmin"));
  TL_ASSIGN_OR_RETURN(ecn.kmax, map.bytes("kmax"));
  if (map.has("pmax")) {
    TL_ASSIGN_OR_RETURN(ecn.pmax_percent, map.percent("pmax"));
  }
  if (ecn.kmin < ecn.kmax) return ecn;
  return map.wrong("kmax", fmt::format("expected more than 'kmin', {}", format_bytes(ecn.kmin)));
}

// `marks`: where the code points of CNP go, which no class of the file has.
Result<ClassService> read_service(const std::string& path, const YAML::Node& node, const std::string& name,
                                  Qos* marks) {
  const std::string subject = fmt::format("the service of '{}'", name);
  const std::span<const std::string_view> keys =
      marks == nullptr ? std::span<const std::string_view>(kServiceKeys) : std::span<const std::string_view>(kCnpKeys);
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, subject, keys));
  ClassService service;
  service.line = map.line();
  if (map.has("strict")) {
    TL_ASSIGN_OR_RETURN(service.strict, map.flag("strict"));
  }
  if (map.has("shaper")) {
    TL_ASSIGN_OR_RETURN(service.shaper_percent, map.percent("shaper"));
  }
  if (map.has("weight")) {
    TL_ASSIGN_OR_RETURN(service.weight_percent, map.percent("weight"));
  }
  if (map.has("ecn")) {
    TL_ASSIGN_OR_RETURN(service.ecn, read_ecn(map, subject));
  }
  if (marks != nullptr && map.has("dscp")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t dscp, map.number("dscp", 0, 63));
    marks->cnp_dscp = static_cast<std::uint8_t>(dscp);
  }
  if (marks != nullptr && map.has("pcp")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t pcp, map.number("pcp", 0, 7));
    marks->cnp_pcp = static_cast<std::uint8_t>(pcp);
  }
  return service;
}

Status read_services(const Mapping& qos, Qos& result) {
  const YAML::Node node = qos.get("classes");
  if (!node.IsMap()) return qos.wrong("classes", "expected a mapping from class names to how they are served");
  for (const auto& pair : node) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : std::string();
    if (!is_name(name))
      return error(fmt::format("class '{}' in 'qos'", name), place(qos.path(), pair.first),
                   "expected the name of a class");
    Qos* marks = name == "cnp" ? &result : nullptr;
    TL_ASSIGN_OR_RETURN(const ClassService service, read_service(qos.path(), pair.second, name, marks));
    if (!result.services.emplace(name, service).second)
      return error(fmt::format("doubled class '{}' in 'qos'", name), place(qos.path(), pair.first), "keep one of them");
  }
  return Status::ok_status();
}

bool is_path_character(char c) {
  return is_name(std::string_view(&c, 1)) || c == '/';
}

Status read_headroom(const Mapping& qos, HeadroomOptions& headroom) {
  TL_ASSIGN_OR_RETURN(const Mapping map,
                      Mapping::open(qos.path(), qos.get("headroom"), "'headroom' of 'qos'", kHeadroomKeys));
  if (map.has("formula")) {
    TL_ASSIGN_OR_RETURN(const std::size_t formula, map.one_of("formula", kFormulas));
    headroom.formula = static_cast<HeadroomOptions::Formula>(formula);
  }
  if (map.has("port_mtu")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t mtu, map.number("port_mtu", 576, 65535));
    headroom.port_mtu = static_cast<std::uint32_t>(mtu);
  }
  if (map.has("lossless_mtu")) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t mtu, map.number("lossless_mtu", 64, 65535));
    headroom.lossless_mtu = static_cast<std::uint32_t>(mtu);
  }
  if (map.has("small_packets")) {
    TL_ASSIGN_OR_RETURN(headroom.small_packets_percent, map.percent("small_packets"));
  }
  if (map.has("shared_headroom")) {
    TL_ASSIGN_OR_RETURN(headroom.shared_headroom, map.flag("shared_headroom"));
  }
  if (map.has("accept_estimate")) {
    TL_ASSIGN_OR_RETURN(headroom.accept_estimate, map.flag("accept_estimate"));
  }
  if (map.has("lookup")) {
    TL_ASSIGN_OR_RETURN(headroom.lookup, map.text("lookup"));
    if (!std::all_of(headroom.lookup.begin(), headroom.lookup.end(), is_path_character))
      return map.wrong("lookup", "expected a path of letters, digits, '.', '_', '/' and '-'");
  }
  return Status::ok_status();
}

Status read_watchdog(const Mapping& qos, Watchdog& watchdog) {
  TL_ASSIGN_OR_RETURN(const Mapping map,
                      Mapping::open(qos.path(), qos.get("watchdog"), "'watchdog' of 'qos'", kWatchdogKeys));
  for (const auto& [key, time] : {std::pair("poll", &watchdog.poll), std::pair("detection", &watchdog.detection),
                                  std::pair("restoration", &watchdog.restoration)}) {
    if (!map.has(key)) continue;
    TL_ASSIGN_OR_RETURN(*time, map.duration(key));
  }
  if (!map.has("action")) return Status::ok_status();
  TL_ASSIGN_OR_RETURN(const std::size_t action, map.one_of("action", kActions));
  watchdog.action = static_cast<Watchdog::Action>(action);
  return Status::ok_status();
}

Result<std::vector<Routing::Route>> read_routes(const Mapping& routing, std::string_view key, std::size_t fewest) {
  std::vector<Routing::Route> routes;
  if (!routing.has(key)) return routes;
  TL_ASSIGN_OR_RETURN(const YAML::Node list, routing.list(key));
  for (const auto& node : list) {
    Routing::Route route;
    route.line = line_of(node);
    if (!node.IsSequence() || node.size() < fewest)
      return error(fmt::format("an item of '{}'", key), place(routing.path(), node),
                   fmt::format("expected a list of at least {} names", fewest));
    for (const auto& hop : node) {
      if (!hop.IsScalar() || !is_name(hop.Scalar()))
        return error(fmt::format("an item of '{}'", key), place(routing.path(), hop), "expected a name");
      route.hops.push_back(hop.Scalar());
    }
    routes.push_back(std::move(route));
    if (routes.size() > kMaxItems) return routing.wrong(key, fmt::format("expected at most {}", kMaxItems));
  }
  return routes;
}

}  // namespace

Result<Qos> read_qos(const Mapping& file) {
  Qos qos;
  if (!file.has("qos")) return qos;
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(file.path(), file.get("qos"), "'qos'", kQosKeys));
  qos.line = map.line();
  if (map.has("classes")) TL_RETURN_IF_ERROR(read_services(map, qos));
  if (map.has("headroom")) TL_RETURN_IF_ERROR(read_headroom(map, qos.headroom));
  if (map.has("watchdog")) TL_RETURN_IF_ERROR(read_watchdog(map, qos.watchdog));
  if (map.has("head_of_line_lifetime")) {
    TL_ASSIGN_OR_RETURN(qos.head_of_line_lifetime, map.duration("head_of_line_lifetime"));
  }
  if (map.has("retry_budget")) {
    TL_ASSIGN_OR_RETURN(qos.retry_budget, map.duration("retry_budget"));
  }
  return qos;
}

Result<Routing> read_routing(const Mapping& file) {
  Routing routing;
  if (!file.has("routing")) return routing;
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(file.path(), file.get("routing"), "'routing'", kRoutingKeys));
  routing.line = map.line();
  if (map.has("mode")) {
    TL_ASSIGN_OR_RETURN(const std::size_t mode, map.one_of("mode", kModes));
    routing.up_down = mode == 0;
  }
  TL_ASSIGN_OR_RETURN(routing.routes, read_routes(map, "routes", 3));
  TL_ASSIGN_OR_RETURN(routing.flooding, read_routes(map, "flooding", 1));
  return routing;
}

Status check_qos(const Fabric& fabric) {
  std::set<std::string_view> names{"control", "cnp", "default"};
  for (const TrafficClass& cls : fabric.classes.data) names.insert(cls.name);
  names.insert(fabric.classes.control.name);
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const auto& [name, service] : fabric.qos.services) {
    if (names.contains(name)) continue;
    return error(fmt::format("unknown class '{}' in 'qos'", name), at_line(fabric, service.line),
                 suggestion(name, known) + "expected one of " + join(known));
  }
  return Status::ok_status();
}

Status check_routing(const Fabric& fabric) {
  const Routing& routing = fabric.routing;
  if (routing.routes.empty() && routing.flooding.empty()) return Status::ok_status();
  std::set<std::pair<std::string_view, std::string_view>> linked;
  for (const Link& link : fabric.links) {
    linked.emplace(link.from, link.to);
    linked.emplace(link.to, link.from);
  }
  for (const Routing::Route& route : routing.routes) {
    for (std::size_t i = 0; i < route.hops.size(); ++i) {
      const bool end = i == 0 || i + 1 == route.hops.size();
      if ((fabric.find_host(route.hops[i]) != nullptr) != end)
        return error(fmt::format("a route with {} '{}'", end ? "the end" : "the hop", route.hops[i]),
                     at_line(fabric, route.line), "expected a host, switches, and a host of this file");
      if (i > 0 && !linked.contains({route.hops[i - 1], route.hops[i]}))
        return error(fmt::format("a route from '{}' to '{}'", route.hops[i - 1], route.hops[i]),
                     at_line(fabric, route.line), "no link leads there; expected neighbours");
    }
  }
  for (const Routing::Route& vlan : routing.flooding) {
    for (const std::string& name : vlan.hops) {
      if (fabric.find_switch(name) == nullptr)
        return error(fmt::format("'{}' in 'flooding'", name), at_line(fabric, vlan.line),
                     "expected switches of this file");
    }
  }
  return Status::ok_status();
}

}  // namespace tensorlane::fabric
