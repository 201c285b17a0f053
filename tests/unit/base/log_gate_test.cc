#include "common/base/log_gate.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/log_share.h"

namespace tensorlane {
namespace {

TEST(LogGate, one_line_a_second_for_each_cause_and_the_rest_are_counted) {
  LogGate gate;
  const Time start(0);
  EXPECT_EQ(gate.pass(start, "10.0.0.1"), 0u);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(gate.pass(start, "10.0.0.1"));
  EXPECT_EQ(gate.pass(start, "10.0.0.2"), 5u) << "somebody else is not hidden behind the flood";
  EXPECT_FALSE(gate.pass(start + milliseconds(999), "10.0.0.1"));
  EXPECT_EQ(gate.pass(start + seconds(1), "10.0.0.1"), 1u);
  EXPECT_EQ(held_back_text(0), "");
  EXPECT_EQ(held_back_text(5), " (5 more such since the last message)");
}

TEST(LogGate, many_causes_are_bounded_together) {
  LogGate gate;
  std::size_t passed = 0;
  for (int i = 0; i < 1000; ++i) passed += gate.open(Time(0), std::to_string(i)) ? 1 : 0;
  EXPECT_EQ(passed, LogGate::kPerSecond);
  EXPECT_EQ(gate.pass(Time(0) + seconds(1), "late"), 1000 - LogGate::kPerSecond);
}

TEST(LogShare, each_user_has_lines_that_come_back) {
  LogShare share;
  const Time start = Time() + seconds(5);
  for (std::int64_t i = 0; i < LogShare::kBurst; ++i) EXPECT_EQ(share.pass(1000, start), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(share.pass(1000, start));
  EXPECT_EQ(share.pass(1001, start), 0u) << "another user is not held back";
  EXPECT_FALSE(share.pass(1000, start + (LogShare::kEach - Duration(1))));
  EXPECT_EQ(share.pass(1000, start + LogShare::kEach), 4u);
  EXPECT_FALSE(share.pass(1000, start + LogShare::kEach));
  std::int64_t later = 0;
  while (share.pass(1000, start + seconds(3600))) ++later;
  EXPECT_EQ(later, LogShare::kBurst);
}

TEST(LogGate, lines_that_do_not_say_how_many_were_held_back_leave_that_to_the_next) {
  LogGate gate;
  EXPECT_TRUE(gate.open(Time(0), "a"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(gate.open(Time(0), "a"));
  EXPECT_TRUE(gate.open(Time(0), "b"));
  EXPECT_EQ(gate.pass(Time(0), "c"), 3u);
}

}  // namespace
}  // namespace tensorlane
