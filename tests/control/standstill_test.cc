// Traffic that stands still while hosts live (law 21).
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cluster.h"

namespace tensorlane::control::testing {
namespace {

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
  std::atomic<bool> held{false};    // there is more to send
  std::atomic<std::uint64_t> outstanding{77};

 private:
  void tell(std::size_t host) {
    using std::chrono::steady_clock;
    ports::LaneProgress progress{Time(steady_clock::now().time_since_epoch().count()), {}, {{}}};
    if (urgent) urgent_bytes_ += 1'000'000'000;
    progress.ports[0].sent[0] = urgent_bytes_;
    const ports::FlowProgress flow{.given = host == 0 ? given.load() : 0,
                                   .received = host == 1 ? received.load() : 0,
                                   .outstanding_bytes = outstanding,
                                   .retransmissions = 5,
                                   .path_mtu = 9000};
    if (host < 2) progress.flows.push_back({HostIndex(host == 0 ? 1 : 0), ClassId(1), RailIndex(0), flow, held});
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

TEST(Standing, a_flow_whose_frames_have_all_arrived_says_what_it_waits_for) {
  Cluster cluster({.hosts = 2, .stall_warning = milliseconds(500), .stall_error = seconds(60)});
  cluster.start();
  cluster.join_all();
  Flows flows(cluster);
  flows.given = 2;
  flows.held = true;
  std::uint32_t request = 1;
  const auto says = [&](std::string_view what) {
    return eventually([&] {
      const nlohmann::json shown = standing(cluster, 1, request++);
      return !shown.empty() && shown[0]["what"].get<std::string>().find(what) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("77 bytes have arrived and are not acknowledged"));
  flows.outstanding = 0;
  EXPECT_TRUE(says("it waits for the window of its class"));
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
