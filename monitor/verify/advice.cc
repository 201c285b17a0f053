#include "monitor/verify/advice.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tensorlane::verify {
namespace {

using fabric::Nos;
using Kind = Place::Kind;

// The ports at the ends of a leg; empty where links are parallel, or the file does not name them.
Leg ends_of(const std::string& from, const std::string& to, const Topology& topology) {
  const auto legs = topology.legs_between(from, to);
  return legs.size() == 1 ? topology.leg(legs.front()) : Leg{from, to, {}, {}, {}};
}

std::string port_of(const std::string& node, const std::string& port, const std::string& other, const char* way) {
  if (port.empty()) return fmt::format("{}'s port {} {}", node, way, other);
  return fmt::format("{}'s port {} {} {}", node, port, way, other);
}

// A switch, though it may have no name.
bool is_hop(const std::string& node, const Topology& topology) {
  return topology.is_switch(node) || node.starts_with("hop ") || node.ends_with(")");
}

std::string describe_leg(const Place& place, const Topology& topology) {
  const Leg leg = ends_of(place.node, place.peer, topology);
  const bool from_switch = is_hop(place.node, topology), to_switch = is_hop(place.peer, topology);
  const std::string out = port_of(place.node, leg.from_port, place.peer, "towards");
  const std::string in = port_of(place.peer, leg.to_port, place.node, "from");
  if (!from_switch && to_switch) return fmt::format("{}'s NIC, or {}", place.node, in);
  if (from_switch && !to_switch) return fmt::format("{}, or {}'s NIC", out, place.peer);
  if (!from_switch) return fmt::format("between {} and {}", place.node, place.peer);
  return fmt::format("{}, or {}", out, in);
}

// "%" stands for the port.
struct Commands {
  Nos nos;
  const char *marking, *queueing, *loss;
};
constexpr std::array<Commands, 8> kCommands{{
    {Nos::kSonic, "sonic-db-cli CONFIG_DB hgetall 'PORT_QOS_MAP|%'", "sonic-cfggen -d -v QUEUE; show queue counters %",
     "show pfc counters; show queue counters %"},
    {Nos::kCumulus, "nv show interface % qos", "nv show interface % counters qos egress-queue-stats",
     "nv show interface % counters qos pfc-stats"},
    {Nos::kEos, "show qos interfaces %", "show qos interfaces %", "show priority-flow-control counters detail"},
    {Nos::kNxos, "show policy-map interface %", "show queuing interface %", "show interface % priority-flow-control"},
    {Nos::kJunos, "show class-of-service interface %", "show interfaces queue %", "show interfaces % extensive"},
    {Nos::kOnyx, "show qos interface ethernet %", "show dcb ets interface ethernet %",
     "show dcb priority-flow-control interface ethernet %"},
    {Nos::kOpenConfig, "gnmi get --path '/qos/interfaces/interface[interface-id=%]/input'",
     "gnmi get --path '/qos/interfaces/interface[interface-id=%]/output'",
     "gnmi get --path '/qos/interfaces/interface[interface-id=%]/output/queues'"},
    {Nos::kLinux, "nft list ruleset; tc filter show dev %", "tc -s class show dev %", "tc -s class show dev %"},
}};

}  // namespace

std::string describe(const Place& place, const Topology& topology) {
  switch (place.kind) {
    case Kind::kSender:
      return fmt::format("host {}: its NIC or its settings", place.node);
    case Kind::kReceiver:
      return fmt::format("host {}: where it receives", place.node);
    case Kind::kLeg:
      return describe_leg(place, topology);
    case Kind::kWay:
      return fmt::format("{}, of the parallel links the one that ends at {}", describe_leg(place, topology),
                         place.address);
    case Kind::kEntry:
      return port_of(place.node, ends_of(place.peer, place.node, topology).to_port, place.peer, "from");
    case Kind::kNode:
      return fmt::format("{}, whatever the port", place.node);
    case Kind::kGap:
      break;
  }
  const std::string gap = fmt::format("between {} and {}", place.node, place.peer);
  return place.pair.empty() ? gap : fmt::format("{}, for what goes from {}", gap, place.pair);
}

Device device_of(const Place& place, const Topology& topology) {
  const bool is_switch = topology.is_switch(place.node);
  switch (place.kind) {
    case Kind::kSender:
    case Kind::kReceiver:
      return {place.node, {}, false};
    case Kind::kLeg:
    case Kind::kWay: {
      const Leg leg = ends_of(place.node, place.peer, topology);
      if (!is_hop(place.node, topology) && topology.is_switch(place.peer)) return {place.peer, leg.to_port, true};
      return {place.node, leg.from_port, is_switch};
    }
    case Kind::kEntry:
      return {place.node, ends_of(place.peer, place.node, topology).to_port, is_switch};
    case Kind::kNode:
    case Kind::kGap:
      break;
  }
  return {place.node, {}, is_switch};
}

std::string show_command(const Device& device, Topic topic, const Topology& topology) {
  if (!device.is_switch) return is_hop(device.name, topology) ? "" : "tensorlane doctor --fabric fabric.yaml";
  const auto nos = topology.nos(device.name);
  for (const Commands& commands : kCommands) {
    if (nos != commands.nos) continue;
    std::string text = topic == Topic::kMarking    ? commands.marking
                       : topic == Topic::kQueueing ? commands.queueing
                                                   : commands.loss;
    const std::string port = device.port.empty() ? "PORT" : device.port;
    for (std::size_t at = 0; (at = text.find('%', at)) != std::string::npos; at += port.size())
      text.replace(at, 1, port);
    return text;
  }
  return "";
}

const char* family_name(bool ipv6) {
  return ipv6 ? "IPv6" : "IPv4";
}

std::vector<std::pair<std::string, std::string>> by_text(const std::vector<std::pair<std::string, std::string>>& said) {
  std::vector<std::pair<std::string, std::string>> once;
  for (const auto& [name, text] : said) {
    const auto same = std::ranges::find(once, text, &std::pair<std::string, std::string>::second);
    if (same == once.end())
      once.emplace_back(name, text);
    else
      same->first += ", " + name;
  }
  return once;
}

}  // namespace tensorlane::verify
