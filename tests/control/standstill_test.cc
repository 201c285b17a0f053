// Hosts that differ in what must be alike, and traffic that stands still while hosts live (laws 21 and 22).
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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

// ---- what stands still ----

// Lanes that say every few milliseconds how far the flow from h0 to h1 has come.
class Flows {
 public:
  explicit Flows(Cluster& cluster) : cluster_(cluster), job_(cluster.lane(0).record("j").spec.credentials.job) {
    thread_ = std::thread([this] {
      while (!stop_) {
        for (std::size_t host = 0; host < cluster_.options.hosts; ++host) tell(host);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }
  ~Flows() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<std::uint64_t> given{3}, received{2};
  std::atomic<bool> urgent{false};  // fills h0's port

 private:
  void tell(std::size_t host) {
    using std::chrono::steady_clock;
    ports::LaneProgress progress{Time(steady_clock::now().time_since_epoch().count()), {}, {{}}};
    if (urgent) urgent_bytes_ += 1'000'000'000;
    progress.ports[0].sent[0] = urgent_bytes_;
    const ports::FlowProgress flow{.given = host == 0 ? given.load() : 0,
                                   .received = host == 1 ? received.load() : 0,
                                   .outstanding_bytes = 77,
                                   .retransmissions = 5,
                                   .path_mtu = 9000};
    if (host < 2) progress.flows.push_back({HostIndex(host == 0 ? 1 : 0), ClassId(1), RailIndex(0), flow, false});
    cluster_.control(host).on_progress(job_, progress);
  }
  Cluster& cluster_;
  const JobId job_;
  std::uint64_t urgent_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

nlohmann::json standing(Cluster& cluster, std::size_t host, std::uint32_t request) {
  cluster.control(host).status(ports::SessionId(host), 0, request);
  const auto status = cluster.sessions(host).wait_status(host, request);
  return status && !(*status)["jobs"].empty() ? (*status)["jobs"][0]["standing"] : nlohmann::json::array();
}

TEST(Standing, a_flow_that_delivers_nothing_is_shown_by_every_host_and_ends_the_job) {
  Cluster cluster({.hosts = 3, .stall_warning = milliseconds(500), .stall_error = seconds(4)});
  cluster.start();
  cluster.join_all();
  Flows flows(cluster);
  std::uint32_t request = 1;
  for (std::size_t host = 0; host < 3; ++host) {
    nlohmann::json shown;
    ASSERT_TRUE(eventually([&] { return !(shown = standing(cluster, host, request++)).empty(); })) << "host " << host;
    EXPECT_EQ(shown[0]["from"], "h0");
    EXPECT_EQ(shown[0]["to"], "h1");
    EXPECT_EQ(shown[0]["class"], "bulk");
    EXPECT_EQ(shown[0]["state"], "late");
    EXPECT_EQ(shown[0]["outstanding_bytes"], 77);
    EXPECT_EQ(shown[0]["retransmissions"], 5);
    EXPECT_EQ(shown[0]["path_mtu"], 9000);
    EXPECT_GE(cluster.control(host).counts().standstill_reports, 1u);
  }
  for (std::size_t host = 0; host < 3; ++host) {
    const auto failed = cluster.sessions(host).wait_failed(host);
    ASSERT_TRUE(failed) << "host " << host;
    EXPECT_EQ(failed->code(), Code::kTimedOut);
    EXPECT_TRUE(
        failed->what().starts_with("the flow from host h0 to host h1 has delivered nothing (rail 0, class "
                                   "bulk; 77 bytes are not acknowledged, 5 retransmissions, path MTU 9000) "
                                   "for 4."))
        << failed->what();
    EXPECT_TRUE(failed->fix().starts_with("look for a port on the path whose MTU is below 9000")) << failed->fix();
  }
}

TEST(Standing, a_flow_that_heals_is_forgotten) {
  Cluster cluster({.hosts = 2, .stall_warning = milliseconds(500), .stall_error = seconds(60)});
  cluster.start();
  cluster.join_all();
  Flows flows(cluster);
  std::uint32_t request = 1;
  for (std::size_t host = 0; host < 2; ++host)
    ASSERT_TRUE(eventually([&] { return !standing(cluster, host, request++).empty(); }));
  flows.received = 3;
  for (std::size_t host = 0; host < 2; ++host)
    EXPECT_TRUE(eventually([&] { return standing(cluster, host, request++).empty(); }));
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0));
}

TEST(Standing, a_flow_that_urgent_traffic_starves_is_shown_and_ends_nothing) {
  Cluster cluster({.hosts = 2, .stall_warning = milliseconds(300), .stall_error = milliseconds(600)});
  cluster.start();
  cluster.join_all();
  Flows flows(cluster);
  flows.urgent = true;
  nlohmann::json shown;
  std::uint32_t request = 1;
  ASSERT_TRUE(eventually([&] { return !(shown = standing(cluster, 1, request++)).empty(); }));
  EXPECT_EQ(shown[0]["state"], "starved");
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 3));
}

}  // namespace
}  // namespace tensorlane::control::testing
