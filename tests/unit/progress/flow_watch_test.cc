#include "daemon/progress/flow_watch.h"

#include <gtest/gtest.h>

#include <map>

namespace tensorlane::progress {
namespace {

using Verdict = FlowWatch::Verdict;
constexpr Limits kLimits{seconds(10), seconds(60)};
constexpr FlowCounts kStands{.given = 5, .delivered = 3};

// Looks at the flow every half second of [from, to), and says how often each verdict came.
struct Watched {
  FlowWatch watch;
  Time now{1'000'000'000};
  std::map<Verdict, int> verdicts;

  void run(const FlowCounts& counts, bool filled, double time, const Limits& limits = kLimits) {
    for (double t = 0; t < time; t += 0.5) {
      ++verdicts[watch.look(counts, filled, now, limits)];
      now = now + milliseconds(500);
    }
  }
};

TEST(FlowWatch, a_flow_that_delivers_is_never_late) {
  Watched w;
  for (std::uint64_t i = 0; i < 1000; ++i) w.run({.given = i + 2, .delivered = i}, false, 5);
  EXPECT_EQ(w.verdicts.size(), 1u);
  EXPECT_TRUE(w.verdicts.contains(Verdict::kNothing));
}

TEST(FlowWatch, a_flow_with_nothing_to_deliver_has_no_age) {
  Watched w;
  w.run({.given = 7, .delivered = 7}, false, 600);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  EXPECT_EQ(w.watch.age(), Duration());
  // The age begins with what there is to deliver, not with the last time that something was delivered.
  w.run({.given = 8, .delivered = 7}, false, 9);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
}

TEST(FlowWatch, what_stands_still_is_reported_again_and_again_and_then_an_error) {
  Watched w;
  w.run(kStands, false, 9.5);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  w.run(kStands, false, 2);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 1);
  w.run(kStands, false, 48);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 5);
  EXPECT_EQ(w.verdicts[Verdict::kError], 0);
  w.run(kStands, false, 2);
  EXPECT_GT(w.verdicts[Verdict::kError], 0);
}

TEST(FlowWatch, what_holds_others_back_is_the_first_error) {
  Watched stands, held;
  stands.run(kStands, false, 65);
  held.run({.given = 3, .delivered = 3, .held = true}, false, 65);
  EXPECT_GT(stands.verdicts[Verdict::kError], 0);
  EXPECT_EQ(held.verdicts[Verdict::kError], 0);
  held.run({.given = 3, .delivered = 3, .held = true}, false, 10);
  EXPECT_GT(held.verdicts[Verdict::kError], 0);
}

TEST(FlowWatch, what_is_held_back_stands_still_too) {
  Watched w;
  w.run({.given = 3, .delivered = 3, .held = true}, false, 12);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 1);
}

TEST(FlowWatch, what_heals_is_told_once_and_begins_anew) {
  Watched w;
  w.run(kStands, false, 12);
  w.run({.given = 5, .delivered = 4}, false, 0.5);
  EXPECT_EQ(w.verdicts[Verdict::kMoves], 1);
  w.run({.given = 5, .delivered = 4}, false, 9);
  EXPECT_EQ(w.verdicts[Verdict::kMoves], 1);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 1);
  w.run({.given = 5, .delivered = 4}, false, 2);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 2);
}

TEST(FlowWatch, what_was_not_reported_heals_in_silence) {
  Watched w;
  w.run(kStands, false, 8);
  w.run({.given = 5, .delivered = 5}, false, 5);
  EXPECT_EQ(w.verdicts[Verdict::kMoves], 0);
}

TEST(FlowWatch, a_starved_flow_is_reported_and_never_an_error) {
  Watched w;
  w.run(kStands, true, 3600);
  EXPECT_EQ(w.verdicts[Verdict::kError], 0);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  EXPECT_NEAR(w.verdicts[Verdict::kStarved], 360, 1);
  w.run({.given = 5, .delivered = 4}, true, 0.5);
  EXPECT_EQ(w.verdicts[Verdict::kMoves], 1);
}

TEST(FlowWatch, a_flow_that_starves_again_is_reported_as_soon_as_the_first_time) {
  Watched w;
  w.run(kStands, true, 35);
  EXPECT_EQ(w.verdicts[Verdict::kStarved], 3);
  w.run({.given = 5, .delivered = 4}, true, 0.5);
  w.run({.given = 5, .delivered = 4}, true, 9);
  EXPECT_EQ(w.verdicts[Verdict::kStarved], 3);
  w.run({.given = 5, .delivered = 4}, true, 2);
  EXPECT_EQ(w.verdicts[Verdict::kStarved], 4);
}

TEST(FlowWatch, gaps_of_the_urgent_traffic_are_forgiven) {
  Watched w;
  for (int i = 0; i < 600; ++i) {
    w.run(kStands, true, 2);
    w.run(kStands, false, 6);
  }
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  EXPECT_EQ(w.verdicts[Verdict::kError], 0);
}

TEST(FlowWatch, a_little_urgent_traffic_excuses_nothing) {
  Watched w;
  for (int i = 0; i < 20; ++i) {
    w.run(kStands, true, 1);
    w.run(kStands, false, 9);
  }
  EXPECT_GT(w.verdicts[Verdict::kLate], 0);
  EXPECT_GT(w.verdicts[Verdict::kError], 0);
}

TEST(FlowWatch, the_age_runs_again_when_starvation_ends) {
  Watched w;
  w.run(kStands, true, 3600);
  w.run(kStands, false, 9);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  w.run(kStands, false, 2);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 1);
}

TEST(FlowWatch, a_pause_of_the_one_who_looks_is_not_the_flows) {
  Watched w;
  w.run(kStands, false, 1);
  w.now = w.now + seconds(600);
  w.run(kStands, false, 0.5);
  EXPECT_EQ(w.verdicts[Verdict::kLate], 0);
  EXPECT_EQ(w.verdicts[Verdict::kError], 0);
}

}  // namespace
}  // namespace tensorlane::progress
