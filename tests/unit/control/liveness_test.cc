#include "daemon/control/liveness.h"

#include <gtest/gtest.h>

namespace tensorlane::control {
namespace {

constexpr Time at(double seconds) {
  return Time(static_cast<std::int64_t>(seconds * 1e9));
}

// Checks every 50 ms from `from` to `to`; the first verdict that is one.
Liveness::Verdict run(Liveness& liveness, double from, double to) {
  for (double t = from; t <= to; t += 0.05) {
    const auto verdict = liveness.check(at(t));
    if (verdict.dead || verdict.own_pause) return verdict;
  }
  return {};
}

TEST(Liveness, a_host_that_is_heard_stays_alive) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  for (double t = 0; t < 10; t += 0.125) {
    liveness.heard("h1", at(t));
    EXPECT_FALSE(liveness.check(at(t + 0.06)).dead);
  }
}

TEST(Liveness, silence_of_six_tenths_of_the_detection_time_is_death) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  for (double t = 0; t < 2; t += 0.05) {
    liveness.heard("h1", at(t));
    ASSERT_FALSE(liveness.check(at(t)).dead);
  }
  liveness.heard("h1", at(2));
  EXPECT_FALSE(run(liveness, 2, 2.59).dead);
  const auto verdict = run(liveness, 2.61, 2.62);
  EXPECT_EQ(verdict.dead, "h1");
  EXPECT_NEAR(to_seconds(verdict.silence), 0.61, 0.001);
}

TEST(Liveness, the_first_heartbeat_may_take_longer_but_not_longer_than_the_detection_time) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  EXPECT_FALSE(run(liveness, 0, 0.88).dead);
  EXPECT_TRUE(run(liveness, 0.93, 0.95).dead);
}

TEST(Liveness, the_most_silent_host_is_named) {
  Liveness liveness(seconds(1));
  liveness.add("a", at(0));
  liveness.add("b", at(0));
  for (double t = 0; t <= 2; t += 0.05)
    ASSERT_FALSE(liveness.check(at(t)).dead && t < 0.9) << t, liveness.heard("a", at(t)), liveness.heard("b", at(t));
  liveness.heard("a", at(2.1));
  EXPECT_EQ(run(liveness, 2.05, 4).dead, "b");
}

TEST(Liveness, a_long_pause_of_its_own_is_its_own_failure) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  EXPECT_FALSE(liveness.check(at(0.1)).dead);
  const auto verdict = liveness.check(at(1.2));
  ASSERT_TRUE(verdict.own_pause.has_value());
  EXPECT_NEAR(to_seconds(*verdict.own_pause), 1.1, 0.001);
  EXPECT_FALSE(verdict.dead);
}

TEST(Liveness, a_shorter_pause_of_its_own_is_not_blamed_on_others) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  liveness.heard("h1", at(1));
  ASSERT_FALSE(run(liveness, 0.05, 1).dead);
  EXPECT_FALSE(liveness.check(at(1.9)).dead) << "0.9 s of silence, of which this daemon slept 0.9 s";
  EXPECT_TRUE(run(liveness, 1.95, 2.6).dead) << "but silence that goes on is";
}

TEST(Liveness, a_removed_host_is_not_expected) {
  Liveness liveness(seconds(1));
  liveness.add("h1", at(0));
  liveness.remove("h1");
  EXPECT_FALSE(run(liveness, 0, 5).dead);
  EXPECT_FALSE(liveness.silence("h1", at(5)));
  EXPECT_FALSE(liveness.silence("unknown", at(5)));
}

TEST(Liveness, heartbeats_are_due_eight_times_in_a_detection_time) {
  Liveness liveness(seconds(1));
  int due = 0;
  for (double t = 0; t < 9.999; t += 0.005) due += liveness.due(at(t)) ? 1 : 0;
  EXPECT_NEAR(due, 80, 4);
}

}  // namespace
}  // namespace tensorlane::control
