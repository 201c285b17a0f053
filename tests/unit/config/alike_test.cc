#include "daemon/config/alike.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorlane::config {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

DaemonConfig config_of(fabric::Preset preset) {
  DaemonConfig config;
  config.fabric.classes = fabric::preset(preset);
  fabric::Host host;
  host.name = config.host = "h0";
  host.addresses["tcp"] = {"10.0.0.1"};
  config.fabric.hosts.push_back(host);
  return config;
}

// Keys of which the values differ.
std::vector<std::string> differing(const DaemonConfig& a, const DaemonConfig& b) {
  const auto ours = must_be_alike(a), theirs = must_be_alike(b);
  std::vector<std::string> keys;
  for (const auto& [key, value] : ours) {
    if (const auto other = theirs.find(key); other == theirs.end() || other->second != value) keys.push_back(key);
  }
  return keys;
}

TEST(MustBeAlike, says_which_tags_a_class_has) {
  const auto keys = must_be_alike(config_of(fabric::Preset::kGreenfield));
  EXPECT_THAT(keys, Contains(Pair("fabric.yaml class 1", ::testing::HasSubstr("bulk: DSCP 27"))));
  EXPECT_THAT(differing(config_of(fabric::Preset::kGreenfield), config_of(fabric::Preset::kBrownfield)),
              Contains("fabric.yaml class 1"));
}

TEST(MustBeAlike, a_host_with_a_key_of_its_own_differs_in_that_key_alone) {
  const DaemonConfig all = config_of(fabric::Preset::kGreenfield);
  const auto change = [&](auto set) {
    DaemonConfig one = all;
    set(one);
    return differing(one, all);
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(change([](DaemonConfig& c) { c.priorities = false; }), Keys{"daemon.yaml priorities"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.tags = false; }), Keys{"daemon.yaml tags"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.search_thresholds = true; }), Keys{"daemon.yaml search_thresholds"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.on_lost_flow = DaemonConfig::OnLostFlow::kResume; }),
            Keys{"daemon.yaml on_lost_flow"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.fabric.classes.data[1].pcp ^= 1; }), Keys{"fabric.yaml class 1"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.fabric.classes.data[1].service_level ^= 1; }), Keys{"fabric.yaml class 1"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.fabric.classes.data[0].lossless ^= true; }), Keys{"fabric.yaml class 0"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.fabric.classes.control.dscp ^= 1; }), Keys{"fabric.yaml class control"});
  EXPECT_EQ(change([](DaemonConfig& c) { c.fabric.data_protection = DataProtection::kEncrypt; }),
            Keys{"fabric.yaml data_protection"});
  // What each host may have for itself.
  EXPECT_EQ(change([](DaemonConfig& c) {
              c.late_after = seconds(3);
              c.staging = mib(8);
              c.payload_crc = true;
              c.pattern = protocol::Pattern::kParameterServer;
            }),
            Keys{});
}

TEST(MustBeAlike, hosts_that_insist_on_different_transports_differ_and_auto_does_with_either) {
  DaemonConfig tcp = config_of(fabric::Preset::kGreenfield), rdma = tcp;
  tcp.transport = DaemonConfig::Transport::kTcp;
  rdma.transport = DaemonConfig::Transport::kRdma;
  EXPECT_EQ(differing(tcp, rdma), std::vector<std::string>{"daemon.yaml transport"});
  EXPECT_THAT(must_be_alike(config_of(fabric::Preset::kGreenfield)), Not(Contains(Key("daemon.yaml transport"))));
}

TEST(MustBeAlike, keys_of_rdma_count_where_there_is_rdma) {
  DaemonConfig config = config_of(fabric::Preset::kGreenfield);
  EXPECT_THAT(must_be_alike(config), Not(Contains(Key("daemon.yaml rdma.queue_pairs"))));
  config.fabric.hosts.front().addresses["rdma"] = {"10.0.0.1"};
  EXPECT_THAT(must_be_alike(config), Contains(Pair("daemon.yaml rdma.queue_pairs", "1")));
  DaemonConfig other = config;
  other.rdma.connect_by_cm = !config.rdma.connect_by_cm;
  EXPECT_EQ(differing(other, config), std::vector<std::string>{"daemon.yaml rdma.connect"});
  config.transport = DaemonConfig::Transport::kTcp;
  EXPECT_THAT(must_be_alike(config), Not(Contains(Key("daemon.yaml rdma.queue_pairs"))));
}

TEST(MustBeAlike, keys_of_dpdk_count_where_there_is_dpdk) {
  DaemonConfig config = config_of(fabric::Preset::kGreenfield);
  EXPECT_THAT(must_be_alike(config), Not(Contains(Key("daemon.yaml dpdk.port"))));
  config.fabric.hosts.front().addresses["dpdk"] = {"10.0.0.1"};
  DaemonConfig other = config;
  other.dpdk.port += 1;
  other.dpdk.vlan = 5;
  EXPECT_EQ(differing(other, config), (std::vector<std::string>{"daemon.yaml dpdk.port", "daemon.yaml dpdk.vlan"}));
}

}  // namespace
}  // namespace tensorlane::config
