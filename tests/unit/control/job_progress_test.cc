#include "daemon/control/job_progress.h"

#include <gtest/gtest.h>

namespace tensorlane::control {
namespace {

using nlohmann::json;
constexpr HostIndex kSelf{0}, kPeer{1};
constexpr RailIndex kRail{0};
constexpr ClassId kUrgent{0}, kBulk{1};
constexpr progress::Limits kLimits{seconds(10), seconds(60)};
constexpr std::uint64_t kSecondOfLink = 125'000'000;  // bytes, of 1 Gbit/s

// Two hosts that speak once a second.
struct Pair {
  JobProgress job{kSelf, {{BitsPerSecond(1'000'000'000)}, {BitsPerSecond(1'000'000'000)}}, kLimits};
  Time now{seconds(1000).value};
  std::uint64_t given = 7, delivered = 5;
  ports::PortBytes own, peers;
  std::vector<Standstill> reported;
  std::optional<Standstill> error;

  void second(bool lane_turns = true) {
    now = now + seconds(1);
    if (lane_turns) {
      ports::LaneProgress lane{now, {}, {own}};
      lane.flows.push_back(
          {kPeer,
           kBulk,
           kRail,
           {.given = given, .received = 3, .outstanding_bytes = 4096, .retransmissions = 9, .path_mtu = 9000},
           false});
      job.lane_says(lane, now);
    }
    // A peer's heartbeat is made by its own JobProgress.
    JobProgress peer(kPeer, {{BitsPerSecond()}, {BitsPerSecond()}}, kLimits);
    ports::LaneProgress theirs{now, {}, {peers}};
    theirs.flows.push_back({kSelf, kBulk, kRail, {.given = 3, .received = delivered}, false});
    peer.lane_says(theirs, now);
    ASSERT_TRUE(job.heard(kPeer, peer.heartbeat(kSelf), now));
    const JobProgress::News news = job.check(now);
    reported.insert(reported.end(), news.reported.begin(), news.reported.end());
    if (news.error && !error) error = news.error;
  }
  void run(int seconds_long, bool lane_turns = true) {
    for (int i = 0; i < seconds_long; ++i) second(lane_turns);
  }
};

TEST(JobProgress, bytes_that_were_sent_and_not_delivered_are_late_with_what_the_device_says) {
  Pair pair;
  pair.run(10);
  EXPECT_TRUE(pair.reported.empty());
  pair.run(2);
  ASSERT_EQ(pair.reported.size(), 1u);
  const Standstill& late = pair.reported.front();
  EXPECT_EQ(late.state, Standstill::State::kLate);
  EXPECT_EQ(late.to, kPeer);
  EXPECT_EQ(late.cls, kBulk);
  EXPECT_EQ(late.progress.outstanding_bytes, 4096u);
  EXPECT_EQ(late.progress.path_mtu, 9000u);
  pair.run(60);
  ASSERT_TRUE(pair.error);
  EXPECT_GE(pair.error->waited, seconds(60));
}

TEST(JobProgress, what_is_delivered_at_last_is_told_once) {
  Pair pair;
  pair.run(15);
  pair.delivered = 7;
  pair.run(30);
  ASSERT_EQ(pair.reported.size(), 2u);
  EXPECT_EQ(pair.reported.back().state, Standstill::State::kMoves);
}

TEST(JobProgress, urgent_traffic_at_either_port_starves_and_ends_nothing) {
  for (const bool at_sender : {true, false}) {
    Pair pair;
    for (int i = 0; i < 3600; ++i) {
      (at_sender ? pair.own.sent : pair.peers.received)[0] += kSecondOfLink * 9 / 10;
      pair.second();
    }
    EXPECT_FALSE(pair.error);
    for (const Standstill& reported : pair.reported) ASSERT_EQ(reported.state, Standstill::State::kStarved);
    EXPECT_NEAR(static_cast<double>(pair.reported.size()), 360, 2);
  }
}

TEST(JobProgress, bulk_does_not_starve_bulk) {
  Pair pair;
  for (int i = 0; i < 80; ++i) {
    pair.own.sent[kBulk.value] += kSecondOfLink;
    pair.second();
  }
  EXPECT_TRUE(pair.error);
}

TEST(JobProgress, a_peer_that_has_not_spoken_of_a_flow_is_not_late_with_it) {
  Pair pair;
  JobProgress& job = pair.job;
  for (int i = 0; i < 100; ++i) {
    pair.now = pair.now + seconds(1);
    job.lane_says({pair.now, {{kPeer, kBulk, kRail, {.given = 5}, false}}, {{}}}, pair.now);
    const JobProgress::News news = job.check(pair.now);
    EXPECT_TRUE(news.reported.empty() && !news.error);
  }
}

// Its lane stands still since before the flow came up.
TEST(JobProgress, a_peer_that_speaks_but_not_of_a_flow_is_late_with_it) {
  Pair pair;
  JobProgress peer(kPeer, {{BitsPerSecond()}, {BitsPerSecond()}}, kLimits);
  for (int i = 0; i < 12; ++i) {
    pair.now = pair.now + seconds(1);
    pair.job.lane_says({pair.now, {{kPeer, kBulk, kRail, {.given = 5}, false}}, {{}}}, pair.now);
    ASSERT_TRUE(pair.job.heard(kPeer, peer.heartbeat(kSelf), pair.now));
    const JobProgress::News news = pair.job.check(pair.now);
    pair.reported.insert(pair.reported.end(), news.reported.begin(), news.reported.end());
  }
  ASSERT_EQ(pair.reported.size(), 1u);
  EXPECT_EQ(pair.reported.front().state, Standstill::State::kLate);
}

// What host 0 has received of host 2 is more than of host 1, which hears of its own flow alone.
TEST(JobProgress, a_peer_hears_of_its_own_flows) {
  const std::vector<std::vector<BitsPerSecond>> three(3, {BitsPerSecond()});
  JobProgress receiver(HostIndex(0), three, kLimits), sender(HostIndex(1), three, kLimits);
  std::vector<Standstill> reported;
  for (std::int64_t second = 1; second <= 15; ++second) {
    const Time now(seconds(second).value);
    receiver.lane_says(
        {now,
         {{HostIndex(1), kBulk, kRail, {.received = 3}, false}, {HostIndex(2), kBulk, kRail, {.received = 9}, false}},
         {{}}},
        now);
    sender.lane_says({now, {{HostIndex(0), kBulk, kRail, {.given = 9}, false}}, {{}}}, now);
    ASSERT_TRUE(sender.heard(HostIndex(0), receiver.heartbeat(HostIndex(1)), now));
    for (const Standstill& s : sender.check(now).reported) reported.push_back(s);
  }
  EXPECT_EQ(reported.size(), 1u);
}

TEST(JobProgress, rails_count_each_for_itself) {
  const std::vector<std::vector<BitsPerSecond>> two_rails(2, {2, BitsPerSecond(1'000'000'000)});
  for (const std::uint8_t stands : {0, 1}) {
    for (const bool starved : {false, true}) {
      JobProgress job(kSelf, two_rails, kLimits), peer(kPeer, two_rails, kLimits);
      std::vector<ports::PortBytes> arrives(2);
      std::vector<Standstill> reported;
      for (std::uint64_t second = 1; second <= 15; ++second) {
        const Time now(seconds(static_cast<std::int64_t>(second)).value);
        if (starved) arrives[stands].received[0] += kSecondOfLink;
        ports::LaneProgress here{now, {}, {2, ports::PortBytes()}}, there{now, {}, arrives};
        for (const std::uint8_t rail : {0, 1}) {
          here.flows.push_back({kPeer, kBulk, RailIndex(rail), {.given = 100}, false});
          there.flows.push_back({kSelf, kBulk, RailIndex(rail), {.received = rail == stands ? 5 : second}, false});
        }
        job.lane_says(here, now);
        peer.lane_says(there, now);
        ASSERT_TRUE(job.heard(kPeer, peer.heartbeat(kSelf), now));
        for (const Standstill& s : job.check(now).reported) reported.push_back(s);
      }
      ASSERT_EQ(reported.size(), 1u) << "rail " << int{stands};
      EXPECT_EQ(reported.front().rail, RailIndex(stands));
      EXPECT_EQ(reported.front().state, starved ? Standstill::State::kStarved : Standstill::State::kLate);
    }
  }
}

TEST(JobProgress, a_flow_that_is_held_back_is_late_though_nothing_of_it_is_under_way) {
  Pair pair;
  std::vector<Standstill> reported;
  for (int i = 0; i < 12; ++i) {
    pair.now = pair.now + seconds(1);
    JobProgress peer(kPeer, {{BitsPerSecond()}, {BitsPerSecond()}}, kLimits);
    peer.lane_says({pair.now, {{kSelf, kBulk, kRail, {.received = 5}, false}}, {{}}}, pair.now);
    pair.job.lane_says({pair.now, {{kPeer, kBulk, kRail, {.given = 5}, true}}, {{}}}, pair.now);
    ASSERT_TRUE(pair.job.heard(kPeer, peer.heartbeat(kSelf), pair.now));
    for (const Standstill& s : pair.job.check(pair.now).reported) reported.push_back(s);
  }
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported.front().state, Standstill::State::kLate);
  EXPECT_TRUE(reported.front().held);
}

TEST(JobProgress, a_lane_that_does_not_turn_is_late_itself) {
  Pair pair;
  pair.delivered = pair.given;
  pair.run(5);
  pair.run(12, false);
  ASSERT_EQ(pair.reported.size(), 1u);
  EXPECT_EQ(pair.reported.front().to, kSelf);
  pair.run(1);
  ASSERT_EQ(pair.reported.size(), 2u);
  EXPECT_EQ(pair.reported.back().state, Standstill::State::kMoves);
  pair.run(61, false);
  ASSERT_TRUE(pair.error);
  EXPECT_EQ(pair.error->to, kSelf);
}

TEST(JobProgress, heartbeats_that_are_none_are_refused) {
  JobProgress job(kSelf, {{BitsPerSecond()}, {BitsPerSecond()}}, kLimits);
  const json good = job.heartbeat(kPeer);
  EXPECT_TRUE(job.heard(kPeer, good, Time(1)));
  EXPECT_FALSE(job.heard(kPeer, json::array(), Time(1)));
  EXPECT_FALSE(job.heard(kPeer, json::array({1, json::array({json::array({1, 2})}), json::array()}), Time(1)));
  EXPECT_FALSE(job.heard(kPeer, json::array({1, json::array(), json::array({json::array({9, 0, 1})})}), Time(1)));
  EXPECT_FALSE(job.heard(kPeer, json::array({1, json::array(), json::array({json::array({0, 0, -1})})}), Time(1)));
}

TEST(Standstill, comes_back_as_it_went) {
  const Standstill sent{.to = HostIndex(2),
                        .rail = RailIndex(1),
                        .cls = kControlClass,
                        .state = Standstill::State::kStarved,
                        .waited = seconds(12),
                        .held = true,
                        .progress = {.outstanding_bytes = 5, .retransmissions = 6, .path_mtu = 1500}};
  const auto got = standstill_from_json(standstill_to_json(sent), 3);
  ASSERT_TRUE(got);
  EXPECT_EQ(standstill_to_json(*got), standstill_to_json(sent));
  EXPECT_FALSE(standstill_from_json(standstill_to_json(sent), 2));
  EXPECT_FALSE(standstill_from_json(json::array(), 3));
}

}  // namespace
}  // namespace tensorlane::control
