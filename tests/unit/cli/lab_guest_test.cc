#include "monitor/cli/lab_guest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {
namespace {

using Rdma = LocalFabric::Rdma;
using ::testing::HasSubstr;

constexpr std::uint16_t kVlan = 100;

fabric::Fabric rdma_fabric(int hosts, Rdma rdma, int rails = 1) {
  return make_local_fabric({.hosts = hosts, .rails = rails, .place = Place::kLab, .mtu = kRdmaMtu, .rdma = rdma})
      .value();
}

LabPlan plan_of(const fabric::Fabric& fabric) {
  LabPlan plan = plan_lab(fabric, "demo", mib(4)).value();
  for (Node& node : plan.nodes) node.is_guest = !node.is_switch;
  return plan;
}

TEST(LabGuest, ConfiguresTheHostsAddress) {
  const LabPlan plan = plan_of(rdma_fabric(2, Rdma::kShared));
  EXPECT_EQ(guest_ip_lines(plan.nodes[0], 0),
            "link set lo up\n"
            "link set dev eth0 mtu 4500 gso_max_size 16384\nlink set dev eth0 up\n"
            "addr add 10.77.0.1/32 dev eth0\nroute add 0.0.0.0/0 dev eth0\n");
  EXPECT_EQ(guest_tc_lines(plan.nodes[0], plan.classes, 0), "");
  EXPECT_EQ(guest_rdma_lines(plan.nodes[0]), "link add rxe0 type rxe netdev eth0\n");
}

TEST(LabGuest, AVlanHasTheRdmaAddressAndTheRoutesToTheOthers) {
  const LabPlan plan = plan_of(rdma_fabric(3, Rdma::kVlan));
  EXPECT_THAT(guest_ip_lines(plan.nodes[1], kVlan),
              HasSubstr("addr add 10.77.0.2/32 dev eth0\nroute add 0.0.0.0/0 dev eth0\n"
                        "link add link eth0 name eth0.100 type vlan id 100 egress-qos-map 0:0 1:1 2:2 3:3 4:4 5:5 6:6 "
                        "7:7\nlink set eth0.100 up\n"
                        "addr add 10.78.0.2/32 dev eth0.100\n"
                        "route add 10.78.0.1/32 dev eth0.100\nroute add 10.78.0.3/32 dev eth0.100\n"));
}

TEST(LabGuest, ThePriorityOnAVlanIsTheClassesPcp) {
  const LabPlan plan = plan_of(rdma_fabric(2, Rdma::kVlan));
  fabric::ClassTable classes = fabric::preset(fabric::Preset::kGreenfield);
  classes.data[0].pcp = 4;
  const std::string lines = guest_tc_lines(plan.nodes[0], classes, kVlan);
  const std::string filter = "filter add dev eth0.100 egress protocol ip prio 1 u32 match ip dsfield ";
  EXPECT_THAT(lines, HasSubstr("qdisc add dev eth0.100 clsact\n"));
  EXPECT_THAT(lines, HasSubstr(filter + "0xcc 0xfc action skbedit priority 6\n"));  // control, DSCP 51
  EXPECT_THAT(lines, HasSubstr(filter + "0xac 0xfc action skbedit priority 4\n"));  // urgent, DSCP 43
  EXPECT_THAT(lines, HasSubstr("ipv6 prio 2 u32 match ip6 priority 0x6c 0xfc action skbedit priority 3\n"));  // bulk
}

TEST(LabGuest, EachRailHasANicAnRdmaDeviceAndAVlan) {
  const LabPlan plan = plan_of(rdma_fabric(3, Rdma::kVlan, 2));
  const Node& h1 = plan.nodes[1];
  EXPECT_EQ(guest_rdma_lines(h1), "link add rxe0 type rxe netdev eth0\nlink add rxe1 type rxe netdev eth1\n");
  EXPECT_THAT(address_lines(h1),
              HasSubstr("link add br1 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n"
                        "link set dev br1 up\ntuntap add dev vm1 mode tap\n"
                        "link set dev eth1 mtu 4500 master br1 up\nlink set dev vm1 mtu 4500 master br1 "
                        "up\n"));
  const std::string lines = guest_ip_lines(h1, kVlan);
  EXPECT_THAT(lines, HasSubstr("addr add 10.77.1.2/32 dev eth1\n"
                               "route add 10.77.1.1/32 dev eth1\nroute add 10.77.1.3/32 dev eth1\n"));
  EXPECT_THAT(lines, HasSubstr("link add link eth1 name eth1.100 type vlan id 100 "));
  EXPECT_THAT(lines, HasSubstr("addr add 10.78.1.2/32 dev eth1.100\n"
                               "route add 10.78.1.1/32 dev eth1.100\nroute add 10.78.1.3/32 dev eth1.100\n"));
  EXPECT_THAT(guest_tc_lines(h1, plan.classes, kVlan), HasSubstr("qdisc add dev eth1.100 clsact\n"));
}

TEST(LabGuest, BehindAnIommuNicsHaveAQueueForEachClass) {
  LabPlan plan = plan_of(rdma_fabric(2, Rdma::kShared));
  EXPECT_EQ(guest_queues({}, plan.classes), 1u);
  plan.nodes[0].queues = guest_queues({.iommu = true}, plan.classes);
  EXPECT_EQ(plan.nodes[0].queues, 3u);  // control, urgent and bulk
  EXPECT_THAT(address_lines(plan.nodes[0]), HasSubstr("tuntap add dev vm0 mode tap multi_queue\n"));
  EXPECT_THAT(address_lines(plan.nodes[1]), HasSubstr("tuntap add dev vm0 mode tap\n"));
}

TEST(LabGuest, RefusesWhatGuestsCannotBe) {
  fabric::Fabric no_vlan_address = rdma_fabric(2, Rdma::kShared);
  no_vlan_address.path = "fabric.yaml";
  no_vlan_address.hosts[0].line = 3;
  const fabric::Fabric good = rdma_fabric(2, Rdma::kVlan);
  fabric::Fabric one_rail_without = rdma_fabric(2, Rdma::kVlan, 2);
  one_rail_without.path = "fabric.yaml";
  one_rail_without.hosts[1].addresses["rdma"][1] = one_rail_without.hosts[1].tcp_address(RailIndex(1));
  for (const auto& [fabric, guests, error] : std::initializer_list<std::tuple<fabric::Fabric, Guests, std::string>>{
           {rdma_fabric(1, Rdma::kShared), {}, "1 hosts with --rdma: --hosts: expected 2 to 4"},
           {rdma_fabric(5, Rdma::kShared), {}, "5 hosts with --rdma: --hosts: expected 2 to 4"},
           {good, {.memory_mib = 255}, "255 MiB for each guest: --memory: expected 256 to 8192 MiB"},
           {good, {.vlan = 4095}, "VLAN 4095: --vlan: expected 1 to 4094"},
           {no_vlan_address,
            {.vlan = kVlan},
            "host 'h0' has no address for the VLAN: fabric.yaml:3: write an `rdma` address other than the `tcp` one"},
           {one_rail_without,
            {.vlan = kVlan},
            "host 'h1' has no address for the VLAN: fabric.yaml:0: write an `rdma` address other than the `tcp` one"},
       }) {
    const Status refused = check_guests(fabric, guests);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.to_string(), error);
  }
}

}  // namespace
}  // namespace tensorlane::cli
