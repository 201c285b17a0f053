#include "monitor/cli/lab_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Result<LabPlan> routed(const std::string& text) {
  const auto fabric = fabric::parse(text, "fabric.yaml", fabric::Keys::kOptional);
  EXPECT_TRUE(fabric.ok()) << fabric.status().to_string();
  return plan_lab(*fabric, "demo", kib(512), Switching::kRouted);
}

LabPlan one_switch() {
  return plan_lab(make_local_fabric({.hosts = 2, .place = Place::kLab}).value(), "demo", kib(512), Switching::kRouted)
      .value();
}

constexpr const char* kLeafSpine = R"(
hosts:
  - {name: h0, addresses: {tcp: 10.77.0.1}}
  - {name: h1, addresses: {tcp: 10.77.0.2}}
switches: [{name: leaf0}, {name: leaf1}, {name: spine0}, {name: spine1}]
links:
  - {from: h0, to: leaf0, speed: 1G}
  - {from: h1, to: leaf1, speed: 1G}
  - {from: leaf0, to: spine0, speed: 1G}
  - {from: leaf0, to: spine1, speed: 1G}
  - {from: leaf1, to: spine0, speed: 1G}
  - {from: leaf1, to: spine1, speed: 1G}
)";

// The neighbours to which a node sends what is for an IPv4 address.
std::vector<std::string> next_hops(const LabPlan& plan, const std::string& node, const std::string& to) {
  std::vector<std::string> peers;
  const Node& from = *plan.find(node);
  for (const Route& route : from.routes) {
    if (route.to.v4 != to) continue;
    for (const std::size_t port : route.ports) peers.push_back(from.ports[port].peer);
  }
  return peers;
}

TEST(LabRoutes, EveryNodeHasAnAddressOfEachFamily) {
  const LabPlan plan = one_switch();
  EXPECT_EQ(plan.nodes[1].ports[0].both.v4, "10.77.0.2");
  EXPECT_EQ(plan.nodes[1].ports[0].both.v6, "fd74:6c::a4d:2");
  EXPECT_EQ(plan.nodes[2].loopback.v4, "198.19.0.1");
  EXPECT_EQ(plan.nodes[2].loopback.v6, "fd74:6c::c613:1");
  const LabPlan v6 = routed(R"(
hosts:
  - {name: h0, addresses: {tcp: [10.0.0.1, 10.1.0.1]}}
  - {name: h1, addresses: {tcp: ["FD00::0002", "fd00:0:0:1::2"]}}
switches: [{name: s}, {name: t}]
links: [{from: "h[0-1]", to: s, speed: 1G}, {from: "h[0-1]", to: t, speed: 1G}]
)")
                         .value();
  EXPECT_EQ(v6.nodes[1].ports[0].both.v4, "198.18.0.2");
  EXPECT_EQ(v6.nodes[1].ports[0].both.v6, "fd00::2") << "as the kernel writes it";
  EXPECT_EQ(v6.nodes[1].ports[1].both.v4, "198.18.1.2");
  EXPECT_EQ(v6.nodes[3].loopback.v4, "198.19.0.2");
}

TEST(LabRoutes, AllShortestPathsAreTaken) {
  const LabPlan plan = routed(kLeafSpine).value();
  EXPECT_THAT(next_hops(plan, "h0", "0.0.0.0/0"), ElementsAre("leaf0"));
  EXPECT_EQ(plan.find("h0")->routes.size(), 1u);
  EXPECT_THAT(next_hops(plan, "leaf0", "10.77.0.2/32"), ElementsAre("spine0", "spine1"));
  EXPECT_THAT(next_hops(plan, "leaf0", "10.77.0.1/32"), ElementsAre("h0"));
  EXPECT_THAT(next_hops(plan, "spine1", "10.77.0.2/32"), ElementsAre("leaf1"));
  EXPECT_THAT(next_hops(plan, "spine0", "198.19.0.4/32"), ElementsAre("leaf0", "leaf1")) << "the other spine";
  EXPECT_THAT(next_hops(plan, "leaf0", "198.19.0.1/32"), ElementsAre()) << "its own address";
}

TEST(LabRoutes, ALongerWayRoundARingIsNotTaken) {
  const LabPlan plan = routed(R"(
hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]
switches: [{name: a}, {name: b}, {name: c}, {name: d}]
links:
  - {from: h, to: a, speed: 1G}
  - {from: a, to: b, speed: 1G}
  - {from: b, to: c, speed: 1G}
  - {from: c, to: d, speed: 1G}
  - {from: d, to: a, speed: 1G}
  - {from: d, from_port: p1, to: a, to_port: p1, speed: 1G}
)")
                           .value();
  EXPECT_THAT(next_hops(plan, "b", "10.0.0.1/32"), ElementsAre("a"));
  EXPECT_THAT(next_hops(plan, "c", "10.0.0.1/32"), ElementsAre("b", "d"));
  EXPECT_THAT(next_hops(plan, "d", "10.0.0.1/32"), ElementsAre("a", "a")) << "two links beside each other";
}

// Hosts of two rails between two islands of switches are no way from one to the other.
TEST(LabRoutes, HostsPassNothingOn) {
  const LabPlan plan = routed(R"(
hosts:
  - {name: h0, addresses: {tcp: [10.0.0.1, 10.1.0.1]}}
  - {name: h1, addresses: {tcp: [10.0.0.2, 10.1.0.2]}}
switches: [{name: s}, {name: t}]
links: [{from: "h[0-1]", to: s, speed: 1G}, {from: "h[0-1]", to: t, speed: 1G}]
)")
                           .value();
  EXPECT_THAT(next_hops(plan, "s", "10.0.0.1/32"), ElementsAre("h0"));
  EXPECT_THAT(next_hops(plan, "s", "10.1.0.1/32"), ElementsAre());
  EXPECT_THAT(next_hops(plan, "s", "198.19.0.2/32"), ElementsAre());
  EXPECT_THAT(next_hops(plan, "h0", "10.0.0.2/32"), ElementsAre("s"));
  EXPECT_THAT(next_hops(plan, "h0", "10.1.0.2/32"), ElementsAre("t")) << "rail i speaks to rail i";
  EXPECT_THAT(next_hops(plan, "h0", "198.19.0.2/32"), ElementsAre("t"));
}

TEST(LabRoutes, RailsMayMeetAndGoToTheirOwn) {
  const LabPlan plan = routed(R"(
hosts:
  - {name: h0, addresses: {tcp: [10.0.0.1, 10.1.0.1]}}
  - {name: h1, addresses: {tcp: [10.0.0.2, 10.1.0.2, 10.2.0.2]}}
switches: [{name: a}, {name: b}]
links:
  - {from: h0, to: a, speed: 1G}
  - {from: h0, to: b, speed: 1G}
  - {from: h1, to: a, speed: 1G}
  - {from: h1, to: b, speed: 1G}
  - {from: h1, to: b, speed: 1G}
  - {from: a, to: b, speed: 1G}
)")
                           .value();
  EXPECT_THAT(next_hops(plan, "h0", "10.0.0.2/32"), ElementsAre("a"));
  EXPECT_THAT(next_hops(plan, "h0", "10.1.0.2/32"), ElementsAre("b"));
  EXPECT_THAT(next_hops(plan, "h0", "10.2.0.2/32"), ElementsAre("b")) << "no third rail: the nearest";
  EXPECT_THAT(next_hops(plan, "a", "10.2.0.2/32"), ElementsAre("b"));
  EXPECT_EQ(plan.find("b")->routes.size(), 6u) << "five rails and the other switch";
}

TEST(LabRoutes, LinesOfAHost) {
  const LabPlan plan = one_switch();
  EXPECT_EQ(address_lines(plan.nodes[0]),
            "link set lo up\n"
            "link set dev eth0 mtu 1500 gso_max_size 16384 up\n"
            "addr add fe80::2/64 dev eth0 nodad\n"
            "neigh add fe80::3 lladdr 02:74:6c:00:00:03 dev eth0 nud permanent\n"
            "addr add 10.77.0.1/32 dev eth0\naddr add fd74:6c::a4d:1/128 dev eth0 nodad\n"
            "route add 0.0.0.0/0 src 10.77.0.1 via inet6 fe80::3 dev eth0\n"
            "route add ::/0 src fd74:6c::a4d:1 via fe80::3 dev eth0\n");
  EXPECT_EQ(cable_lines(plan).substr(0, cable_lines(plan).find('\n')),
            "link add name eth0 address 02:74:6c:00:00:02 netns tl-demo-h0 type veth peer name h0 address "
            "02:74:6c:00:00:03 netns tl-demo-s0");
}

TEST(LabRoutes, LinesOfASwitch) {
  const LabPlan plan = routed(kLeafSpine).value();
  const std::string lines = address_lines(*plan.find("leaf0"));
  EXPECT_THAT(lines, HasSubstr("addr add 198.19.0.1/32 dev lo\naddr add fd74:6c::c613:1/128 dev lo nodad\n"));
  EXPECT_THAT(lines, HasSubstr("route add 10.77.0.2/32 src 198.19.0.1 nexthop via inet6 fe80::7 dev spine0 nexthop via "
                               "inet6 fe80::9 dev spine1\n"
                               "route add fd74:6c::a4d:2/128 src fd74:6c::c613:1 nexthop via fe80::7 dev spine0 "
                               "nexthop via fe80::9 dev spine1\n"));
  EXPECT_THAT(lines, Not(HasSubstr("bridge")));
}

TEST(LabRoutes, SwitchesForwardAndAnswerWithoutALimitHostsDoNot) {
  const LabPlan plan = routed(kLeafSpine).value();
  const std::string leaf = kernel_script(*plan.find("leaf0")), host = kernel_script(*plan.find("h0"));
  for (const std::string line :
       {"1 > ipv4/ip_forward\n", "1 > ipv6/conf/all/forwarding\n", "0 > ipv4/icmp_ratemask\n",
        "'' > ipv6/icmp/ratemask\n", "3 > ipv4/fib_multipath_hash_policy\n", "3 > ipv6/fib_multipath_hash_policy\n",
        "0x37 > ipv4/fib_multipath_hash_fields\n", "0x37 > ipv6/fib_multipath_hash_fields\n"}) {
    EXPECT_THAT(leaf, HasSubstr(line));
    EXPECT_THAT(host, Not(HasSubstr(line)));
  }
  EXPECT_NE(leaf, kernel_script(*plan.find("leaf1"))) << "a seed of its own";
}

TEST(LabRoutes, QueuesTakeIcmpByItsDscp) {
  const LabPlan plan = one_switch();
  const std::string lines = queue_lines(plan.nodes[2], plan.classes);
  EXPECT_THAT(lines, Not(HasSubstr("protocol arp")));
  EXPECT_THAT(lines, Not(HasSubstr("ip6 protocol 58")));
  EXPECT_THAT(lines, HasSubstr("protocol ipv6 prio 5 u32 match ip6 priority 0xac 0xfc flowid 1:11\n"));
}

TEST(LabRoutes, RefusesAddressesThatTwoWouldHave) {
  for (const auto& [written, taken] : std::initializer_list<std::pair<std::string, std::string>>{
           {"198.19.0.1", "198.19.0.1"}, {"\"FD74:6C::198.19.0.1\"", "fd74:6c::c613:1"}}) {
    const auto plan = routed("hosts:\n - {name: h, addresses: {tcp: " + written +
                             "}}\nswitches: [{name: s}]\nlinks: [{from: h, to: s, speed: 1G}]\n");
    ASSERT_FALSE(plan.ok()) << written;
    EXPECT_EQ(plan.status().to_string(),
              taken +
                  " would be an address of 'h' and of 's': fabric.yaml:3: a routed lab derives addresses from "
                  "fd74:6c::/96 and 198.18.0.0/15; give hosts others");
  }
}

TEST(LabRoutes, RefusesMoreNodesThanItHasAddressesFor) {
  const std::string text =
      "hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]\nswitches: [{name: \"s[0-250]\"}]\n"
      "links: [{from: h, to: s0, speed: 1G}]\n";
  const auto plan = routed(text);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().to_string(), "1 hosts and 251 switches: fabric.yaml:1: a routed lab has at most 250 of each");
}

}  // namespace
}  // namespace tensorlane::cli
