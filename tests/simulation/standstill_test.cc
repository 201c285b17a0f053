// Law 21 under the virtual clock: hours of starvation by urgent traffic raise no alarm, and traffic that has stopped
// does, with ports, queues and back-off as the network has them.
#include <gtest/gtest.h>

#include "simulator/clock/random.h"
#include "simulator/host/watched_traffic.h"

namespace tensorlane::simulator {
namespace {

using Verdict = WatchedTraffic::Verdict;
constexpr ClassId kUrgent{0}, kBulk{1};
constexpr HostIndex kA{0}, kB{1}, kC{2};
constexpr Duration kHour = seconds(3600);

// Three hosts on slow links with short frames, so that an hour is not much work, under sanitizers too; connections back
// off as far as TCP's do.
struct Bed {
  EventQueue events;
  WatchedTraffic traffic;
  Random random{5};

  explicit Bed(bool links_known = true, std::uint64_t megabits = 5) : traffic(events, config(links_known, megabits)) {}
  static WatchedTraffic::Config config(bool links_known, std::uint64_t megabits) {
    WatchedTraffic::Config config;
    config.network.hosts.resize(3);
    for (HostPorts& host : config.network.hosts) {
      host.uplink.rate = host.downlink.rate = BitsPerSecond(megabits * 1'000'000);
      host.downlink.buffer = mib(1);
    }
    config.network.packet = kib(16);
    config.network.first_timeout = milliseconds(200);
    config.network.last_timeout = seconds(120);
    config.links_known = links_known;
    return config;
  }
  void run(Duration time) {
    const Time end = events.now() + time;
    bool over = false;
    events.at(end, [&] { over = true; });
    while (!over && events.run_next()) {
    }
  }
  std::uint64_t count(HostIndex from, HostIndex to, ClassId cls, Verdict verdict) const {
    return traffic.given(from, to, cls, verdict).count;
  }
};

TEST(Standstill, no_false_alarm_in_an_hour_of_starvation_at_the_senders_port) {
  Bed bed;
  bed.traffic.fill(kA, kC, kUrgent, true);
  bed.run(seconds(5));
  bed.traffic.fill(kA, kB, kBulk, true);
  bed.run(kHour);
  EXPECT_EQ(bed.traffic.delivered(kA, kB, kBulk), 0u) << "not starved";
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kError), 0u);
  EXPECT_NEAR(static_cast<double>(bed.count(kA, kB, kBulk, Verdict::kStarved)), 360, 40);
  EXPECT_EQ(bed.count(kA, kC, kUrgent, Verdict::kLate), 0u);
  bed.traffic.fill(kA, kC, kUrgent, false);
  bed.run(seconds(20));
  EXPECT_GT(bed.traffic.delivered(kA, kB, kBulk), 0u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kMoves), 1u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
}

TEST(Standstill, no_false_alarm_in_an_hour_of_starvation_at_the_receivers_port) {
  Bed bed;
  bed.traffic.fill(kC, kB, kUrgent, true);
  bed.traffic.fill(kA, kB, kBulk, true);
  bed.run(kHour);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kError), 0u);
  EXPECT_GT(bed.count(kA, kB, kBulk, Verdict::kStarved), 300u);
}

TEST(Standstill, no_false_alarm_in_an_hour_of_urgent_traffic_that_comes_and_goes) {
  Bed bed;
  bed.traffic.fill(kA, kB, kBulk, true);
  const Time end = bed.events.now() + kHour;
  while (bed.events.now() < end) {
    bed.traffic.fill(kC, kB, kUrgent, true);
    bed.run(bed.random.between(seconds(5), seconds(60)));
    bed.traffic.fill(kC, kB, kUrgent, false);
    bed.run(bed.random.between(milliseconds(1), seconds(4)));
  }
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kError), 0u);
}

TEST(Standstill, no_false_alarm_where_no_link_is_described) {
  Bed bed(false, 2000);
  bed.traffic.fill(kC, kB, kUrgent, true);
  bed.run(seconds(5));
  bed.traffic.fill(kA, kB, kBulk, true);
  bed.run(seconds(60));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  EXPECT_GT(bed.count(kA, kB, kBulk, Verdict::kStarved), 0u);
}

// Bulk of one direction is dropped; heartbeats and all else pass.
class Stops : public ::testing::TestWithParam<bool> {};

TEST_P(Stops, are_late_within_late_after_and_an_error_within_late_error) {
  Bed bed;
  bed.traffic.fill(kA, kB, kBulk, true);
  // Urgent traffic that leaves most of the port excuses nothing.
  const std::function<void()> trickle = [&] {
    bed.traffic.fill(kC, kB, kUrgent, true);
    bed.traffic.fill(kC, kB, kUrgent, false);
    bed.events.after(seconds(2), trickle);
  };
  if (GetParam()) trickle();
  bed.run(seconds(300));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  bed.traffic.network().set_dropped(kA, kB, kBulk, true);
  bed.run(seconds(13));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 1u);
  EXPECT_EQ(bed.count(kC, kB, kUrgent, Verdict::kLate), 0u);
  bed.run(seconds(50));
  EXPECT_GT(bed.count(kA, kB, kBulk, Verdict::kError), 0u);
}
INSTANTIATE_TEST_SUITE_P(OfBulk, Stops, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "beside_urgent" : "alone"; });

TEST(Standstill, what_heals_in_time_is_no_error) {
  Bed bed;
  bed.traffic.fill(kA, kB, kBulk, true);
  bed.run(seconds(10));
  bed.traffic.network().set_dropped(kA, kB, kBulk, true);
  bed.run(seconds(20));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 1u);
  bed.traffic.network().set_dropped(kA, kB, kBulk, false);
  bed.run(seconds(60));  // the connection tries again after its back-off
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kMoves), 1u);
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kError), 0u);
}

TEST(Standstill, a_stop_behind_starvation_is_found_when_the_starvation_ends) {
  Bed bed;
  bed.traffic.fill(kC, kB, kUrgent, true);
  bed.traffic.fill(kA, kB, kBulk, true);
  bed.run(seconds(100));
  bed.traffic.network().set_dropped(kA, kB, kBulk, true);
  bed.run(seconds(100));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 0u);
  bed.traffic.fill(kC, kB, kUrgent, false);
  bed.run(seconds(14));
  EXPECT_EQ(bed.count(kA, kB, kBulk, Verdict::kLate), 1u);
}

}  // namespace
}  // namespace tensorlane::simulator
