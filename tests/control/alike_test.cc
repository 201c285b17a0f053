// Hosts that differ in what must be alike (law 22), and hosts whose names do not resolve.
#include <gtest/gtest.h>

#include "cluster.h"

namespace tensorlane::control::testing {
namespace {

// ---- what must be alike ----

TEST(Alike, who_differs_is_named_with_both_values_at_every_rank) {
  Cluster cluster({.hosts = 3});
  cluster.settings[2]["fabric.yaml class 1"] = "bulk: DSCP 26";
  cluster.settings[1]["daemon.yaml tags"] = "false";
  cluster.start();
  for (std::uint32_t rank = 0; rank < 3; ++rank) cluster.control(rank).join(cluster.request(rank));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto joined = cluster.sessions(rank).wait_joined(rank);
    ASSERT_TRUE(joined && !joined->ok()) << "rank " << rank;
    EXPECT_EQ(joined->status().code(), Code::kMismatch);
    EXPECT_EQ(joined->status().what(),
              "hosts differ in what must be alike: daemon.yaml tags is 'true' on h0 and 'false' on h1; fabric.yaml "
              "class 1 is 'bulk: DSCP 27' on h0 and 'bulk: DSCP 26' on h2");
    EXPECT_FALSE(cluster.lane(rank).record("j").aborted) << "flows were made";
  }
  for (std::size_t host = 0; host < 3; ++host)
    EXPECT_TRUE(eventually([&] { return cluster.control(host).counts().jobs_failed_gathering == 1; }));
}

TEST(Alike, a_port_that_the_fabric_files_do_not_agree_on_is_named) {
  Cluster cluster({.hosts = 2});
  cluster.fabrics[1].hosts[1].data_port = 7777;
  cluster.start();
  for (std::uint32_t rank = 0; rank < 2; ++rank) cluster.control(rank).join(cluster.request(rank));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto joined = cluster.sessions(rank).wait_joined(rank);
    ASSERT_TRUE(joined && !joined->ok());
    EXPECT_EQ(joined->status().what(),
              "hosts differ in what must be alike: fabric.yaml data_port of h1 is '7110' on h0 and '7777' on h1");
  }
}

TEST(Alike, keys_that_one_host_alone_has_do_not_count) {
  Cluster cluster({.hosts = 2});
  cluster.settings[1]["daemon.yaml rdma.queue_pairs"] = "4";
  cluster.start();
  cluster.join_all();
}

// ---- names ----

TEST(Names, a_host_that_is_not_in_dns_keeps_nobody_from_starting_and_is_named_by_the_job_that_needs_it) {
  Cluster cluster({.hosts = 3, .join_timeout = milliseconds(1500)});
  cluster.fabrics[0].hosts[1].addresses["tcp"] = {"no-such-host.invalid"};
  cluster.start();
  for (std::uint32_t rank = 0; rank < 3; ++rank) cluster.control(rank).join(cluster.request(rank));
  const auto joined = cluster.sessions(0).wait_joined(0);
  ASSERT_TRUE(joined && !joined->ok());
  EXPECT_NE(joined->status().where().find("the address 'no-such-host.invalid' of host h1 does not resolve here ("),
            std::string::npos)
      << joined->status().to_string();
}

TEST(Names, a_host_whose_name_resolves_takes_part_with_its_number) {
  Cluster cluster({.hosts = 2});
  for (fabric::Fabric& fabric : cluster.fabrics) fabric.hosts[1].addresses["tcp"] = {"localhost"};
  cluster.start();
  cluster.join_all();
  const std::string address = cluster.lane(0).record("j").spec.hosts[1].addresses[0];
  EXPECT_TRUE(address == "127.0.0.1" || address == "::1") << address;
  EXPECT_EQ(cluster.lane(1).record("j").spec.hosts[1].addresses[0], address);
}

}  // namespace
}  // namespace tensorlane::control::testing
