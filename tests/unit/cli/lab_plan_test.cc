#include "monitor/cli/lab_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

fabric::Fabric lab_fabric(int hosts) {
  LocalFabric what;
  what.hosts = hosts;
  what.place = Place::kLab;
  return make_local_fabric(what).value();
}

fabric::Fabric parsed(const std::string& text) {
  auto fabric = fabric::parse(text, "fabric.yaml", fabric::Keys::kOptional);
  EXPECT_TRUE(fabric.ok()) << fabric.status().to_string();
  return std::move(fabric).value();
}

TEST(LabPlan, OneNamespacePerNodeAndOnePortPerEndOfALink) {
  const LabPlan plan = plan_lab(lab_fabric(2), "demo", kib(512)).value();
  ASSERT_EQ(plan.nodes.size(), 3u);
  EXPECT_EQ(plan.nodes[0].ns, "tl-demo-h0");
  EXPECT_EQ(plan.nodes[2].ns, "tl-demo-s0");
  EXPECT_TRUE(plan.nodes[2].is_switch);
  ASSERT_EQ(plan.nodes[2].ports.size(), 2u);
  EXPECT_EQ(plan.nodes[2].ports[1].device, "h1");
  EXPECT_EQ(plan.nodes[1].ports[0].device, "eth0");
  EXPECT_EQ(plan.nodes[1].ports[0].peer, "s0");
  EXPECT_EQ(namespace_lines(plan), "netns add tl-demo-h0\nnetns add tl-demo-h1\nnetns add tl-demo-s0\n");
  EXPECT_EQ(cable_lines(plan),
            "link add name eth0 netns tl-demo-h0 type veth peer name h0 netns tl-demo-s0\n"
            "link add name eth0 netns tl-demo-h1 type veth peer name h1 netns tl-demo-s0\n");
}

// So that `tensorlane-switch apply` finds in the lab what the lab's fabric file says.
TEST(LabPlan, PortsHaveTheNamesOfTheFileAndTheFileThoseOfThePorts) {
  const std::string hosts =
      "hosts:\n - {name: h0, addresses: {tcp: 10.0.0.1}}\n - {name: h1, addresses: {tcp: 10.0.0.2}}\n";
  fabric::Fabric fabric = parsed(hosts +
                                 "switches: [{name: s0}]\nlinks:\n - {from: h0, from_port: eno1, to: s0, "
                                 "to_port: p0, speed: 1G}\n - {from: h1, to: s0, to_port: 1/1, speed: 1G}\n");
  const LabPlan plan = plan_lab(fabric, "demo", kib(512)).value();
  EXPECT_EQ(plan.find("h0")->ports[0].device, "eno1");
  EXPECT_EQ(plan.find("s0")->ports[0].device, "p0");
  EXPECT_EQ(plan.find("s0")->ports[1].device, "h1") << "1/1 is no name of a device";
  name_ports(plan, fabric);
  EXPECT_EQ(fabric.links[0].from_port + " " + fabric.links[0].to_port, "eno1 p0");
  EXPECT_EQ(fabric.links[1].from_port + " " + fabric.links[1].to_port, "eth0 1/1");
  fabric::Fabric made = lab_fabric(2);
  name_ports(plan_lab(made, "demo", kib(512)).value(), made);
  EXPECT_EQ(made.links[1].from_port + " " + made.links[1].to_port, "eth0 h1");
}

TEST(LabPlan, StrictQueuesHaveTheBufferOfTheFifo) {
  const LabPlan plan = plan_lab(lab_fabric(1), "demo", kib(512)).value();
  const std::string lines = queue_lines(plan.nodes[0], plan.classes);
  EXPECT_THAT(lines, HasSubstr("class add dev eth0 parent 1: classid 1:1 htb rate 500000000bit ceil 500000000bit "));
  EXPECT_THAT(lines, HasSubstr("parent 1:10 handle 10: bfifo limit 65536\n"));   // control
  EXPECT_THAT(lines, HasSubstr("parent 1:11 handle 11: bfifo limit 196608\n"));  // urgent
  EXPECT_THAT(lines, HasSubstr("parent 1:12 handle 12: bfifo limit 196608\n"));  // bulk
  EXPECT_THAT(lines, HasSubstr("parent 1:13 handle 13: bfifo limit 65536\n"));   // everything else
  EXPECT_THAT(lines, HasSubstr("parent 1:f0 handle f0: bfifo limit 524288\n"));
}

TEST(LabPlan, TheClassTableDecidesTheQueue) {
  fabric::Fabric fabric = lab_fabric(1);
  fabric.classes = fabric::preset(fabric::Preset::kBrownfield);
  const LabPlan plan = plan_lab(fabric, "demo", kib(512)).value();
  const std::string lines = queue_lines(plan.nodes[0], plan.classes);
  EXPECT_THAT(lines, HasSubstr("protocol ip prio 4 u32 match ip dsfield 0xcc 0xfc flowid 1:10\n"));  // control 51
  EXPECT_THAT(lines, HasSubstr("protocol ip prio 4 u32 match ip dsfield 0xac 0xfc flowid 1:11\n"));  // urgent 43
  EXPECT_THAT(lines, HasSubstr("protocol ip prio 4 u32 match ip dsfield 0x68 0xfc flowid 1:12\n"));  // bulk 26
  EXPECT_THAT(lines, HasSubstr("protocol ipv6 prio 5 u32 match ip6 priority 0x68 0xfc flowid 1:12\n"));
  EXPECT_THAT(lines, HasSubstr("root handle 1: htb default 13\n"));
}

TEST(LabPlan, AFrameOnAVlanGoesByItsPacketsDscp) {
  const LabPlan plan = plan_lab(lab_fabric(1), "demo", kib(512)).value();
  const std::string lines = queue_lines(plan.nodes[0], plan.classes);
  const std::string filter = "filter add dev eth0 parent 1: protocol 802.1Q prio 6 u32 match ";
  EXPECT_THAT(lines, HasSubstr(filter + "u16 0x0001 0xffff at 0 flowid 1:10\n"));                   // ARP
  EXPECT_THAT(lines, HasSubstr(filter + "u8 0x60 0xf0 at 0 match u8 58 0xff at 6 flowid 1:10\n"));  // ICMPv6
  EXPECT_THAT(lines, HasSubstr(filter + "u16 0x40ac 0xf0fc at 0 flowid 1:11\n"));                   // urgent 43
  EXPECT_THAT(lines, HasSubstr(filter + "u16 0x6ac0 0xffc0 at 0 flowid 1:11\n"));
  EXPECT_THAT(lines, HasSubstr(filter + "u16 0x406c 0xf0fc at 0 flowid 1:12\n"));  // bulk 27
}

TEST(LabPlan, TheNamespaceOfAGuestIsABridgeBetweenItsTapAndItsPort) {
  LabPlan plan = plan_lab(lab_fabric(1), "demo", kib(512)).value();
  plan.nodes[0].is_guest = true;
  EXPECT_EQ(address_lines(plan.nodes[0]),
            "link set lo up\n"
            "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set dev br0 up\n"
            "tuntap add dev vm0 mode tap\n"
            "link set dev eth0 mtu 1500 master br0 up\nlink set dev vm0 mtu 1500 master br0 up\n");
}

TEST(LabPlan, EachRailHasAPortASwitchAndRoutesOfItsOwn) {
  const LabPlan plan =
      plan_lab(make_local_fabric({.hosts = 3, .rails = 2, .place = Place::kLab}).value(), "demo", kib(512)).value();
  ASSERT_EQ(plan.nodes.size(), 5u);
  const Node& h1 = plan.nodes[1];
  ASSERT_EQ(h1.ports.size(), 2u);
  EXPECT_EQ(h1.ports[1].peer, "s1");
  EXPECT_EQ(plan.nodes[4].ports[1].peer, "h1");
  EXPECT_THAT(address_lines(h1), HasSubstr("addr add 10.77.0.2/32 dev eth0\n"
                                           "route add 10.77.0.1/32 dev eth0\n"
                                           "route add 10.77.0.3/32 dev eth0\n"));
  EXPECT_THAT(address_lines(h1), HasSubstr("addr add 10.77.1.2/32 dev eth1\n"
                                           "route add 10.77.1.1/32 dev eth1\n"
                                           "route add 10.77.1.3/32 dev eth1\n"));
}

TEST(LabPlan, SevenClassesUseAllPrioritiesOfHtb) {
  fabric::Fabric fabric = lab_fabric(1);
  fabric.classes.data.clear();
  for (std::uint8_t i = 0; i < 7; ++i)
    fabric.classes.data.push_back({.name = "c", .dscp = i, .pcp = i, .rank = i, .window = {}});
  const LabPlan plan = plan_lab(fabric, "demo", mib(1)).value();
  const std::string lines = queue_lines(plan.nodes[0], plan.classes);
  EXPECT_THAT(lines, HasSubstr("classid 1:17 htb rate 8bit ceil 100gbit cburst 256k prio 7 "));
  EXPECT_THAT(lines, HasSubstr("classid 1:18 htb rate 8bit ceil 100gbit cburst 256k prio 7 "));
  EXPECT_THAT(lines, Not(HasSubstr("prio 8 ")));
}

TEST(LabPlan, ThePolicyIsOneFilterPerPort) {
  LabPlan plan = plan_lab(lab_fabric(2), "demo", kib(512)).value();
  Node& s0 = plan.nodes[2];
  const std::string fifo = "filter add dev h1 parent 1: protocol all prio 1 u32 match u32 0 0 flowid 1:f0\n";
  EXPECT_EQ(policy_line(s0.ports[1], Policy::kFifo), fifo);
  EXPECT_EQ(policy_line(s0.ports[1], Policy::kStrict), "filter del dev h1 parent 1: protocol all prio 1\n");
  EXPECT_THAT(queue_lines(s0, plan.classes), Not(HasSubstr("protocol all")));
  s0.ports[1].policy = Policy::kFifo;
  EXPECT_THAT(queue_lines(s0, plan.classes), HasSubstr(fifo));
  EXPECT_THAT(queue_lines(s0, plan.classes), Not(HasSubstr("dev h0 parent 1: protocol all prio 1 ")));
}

TEST(LabPlan, APortIsFoundByItsDeviceOrByItsNeighbour) {
  const LabPlan plan =
      plan_lab(parsed("hosts:\n - {name: h0, addresses: {tcp: 10.0.0.1}}\nswitches: [{name: s}, {name: "
                      "t}]\nlinks:\n - {from: h0, to: s, speed: 1G}\n - {from: s, from_port: p1, to: "
                      "t, speed: 1G}\n - {from: s, from_port: p2, to: t, speed: 1G}\n"),
               "demo", kib(512), Switching::kRouted)
          .value();
  const auto place = [&](std::string_view text) {
    const PortPlace found = find_port(plan, text).value();
    return plan.nodes[found.node].name + " " + plan.nodes[found.node].ports[found.port].device;
  };
  EXPECT_EQ(place("h0:eth0"), "h0 eth0");
  EXPECT_EQ(place("h0:s"), "h0 eth0");
  EXPECT_EQ(place("s:p2"), "s p2");
  for (const auto& [text, error] : std::initializer_list<std::pair<std::string, std::string>>{
           {"s:t", "'s' has several ports to 't': s:t: name one by its device: h0, p1, p2"},
           {"s:h1", "no port 's:h1': 's': expected a port of it: h0, p1, p2"},
           {"u:t",
            "no port 'u:t': the lab's ports: expected NODE:DEVICE or NODE:NEIGHBOUR, as `tensorlane lab show` "
            "has them"},
           {"s",
            "no port 's': the lab's ports: expected NODE:DEVICE or NODE:NEIGHBOUR, as `tensorlane lab show` has "
            "them"}}) {
    const auto refused = find_port(plan, text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.status().to_string(), error);
  }
}

TEST(LabPlan, RefusesWhatALabCannotBe) {
  const std::string host = "hosts:\n - {name: h, addresses: {tcp: 10.0.0.1}}\nswitches: [{name: s}, {name: t}]\n";
  const std::string named = "hosts:\n - {name: h, addresses: {tcp: localhost}}\nswitches: [{name: s}]\n";
  for (const auto& [text, error] : std::initializer_list<std::pair<std::string, std::string>>{
           {host, "host 'h' has 0 links: fabric.yaml:2: a lab needs exactly one link from each host to a switch"},
           {host + "links: [{from: h, to: s, speed: 1G}, {from: h, to: t, speed: 1G}]",
            "host 'h' has 2 links: fabric.yaml:2: a lab needs exactly one link from each host to a switch"},
           {"hosts:\n - {name: h, addresses: {tcp: [10.0.0.1, 10.1.0.1]}}\nswitches: [{name: s}, {name: t}]\n"
            "links:\n - {from: h, to: s, speed: 1G}\n",
            "host 'h' has 1 links: fabric.yaml:2: a lab needs 2 of it: one for each rail"},
           {"hosts:\n - {name: h, addresses: {tcp: [10.0.0.1, 10.1.0.1]}}\nswitches: [{name: s}, {name: t}]\n"
            "links:\n - {from: h, to: s, speed: 1G}\n - {from: h, to: t, speed: 1G}\n - {from: s, to: t, speed: 1G}\n",
            "rails 0 and 1 of host 'h' meet in the switches: fabric.yaml:2: give each rail of a lab switches of its "
            "own, or make the switches routers with --routed"},
           {named + "links: [{from: h, to: s, speed: 1G}]",
            "the tcp address 'localhost' of host 'h' is a name: fabric.yaml:2: a lab gives hosts their addresses "
            "itself; write an IPv4 "
            "or IPv6 address"},
           {host + "links:\n - {from: h, to: s, speed: 1G}\n - {from: s, to: t, speed: 1G}\n - {from: t, to: s, speed: "
                   "1G}\n",
            "the link from 't' to 's' closes a loop: fabric.yaml:7: the bridges of a lab need a tree; leave this link "
            "out, or make the switches routers with --routed"},
           {host + "links:\n - {from: h, to: s, speed: 1G, buffer: 64 KiB}\n",
            "a buffer of 64 KiB for the link from 'h': fabric.yaml:5: a lab with 2 data classes needs at least 256 "
            "KiB"},
       }) {
    const auto plan = plan_lab(parsed(text), "demo", kib(512));
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.status().to_string(), error);
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  }
}

TEST(LabPlan, DeviceNamesFitTheKernel) {
  const LabPlan plan = plan_lab(parsed(R"(
hosts:
  - {name: a-name-of-16-char, addresses: {tcp: 10.0.0.1}}
  - {name: br0, addresses: {tcp: 10.0.0.2}}
switches: [{name: s}]
links: [{from: a-name-of-16-char, to: s, speed: 1G}, {from: br0, to: s, speed: 1G}]
)"),
                                "demo", kib(512))
                           .value();
  EXPECT_EQ(plan.find("s")->ports[0].device, "port0");
  EXPECT_EQ(plan.find("s")->ports[1].device, "port1");
}

}  // namespace
}  // namespace tensorlane::cli
