#include "common/base/spin_budget.h"

#include <gtest/gtest.h>

namespace tensorlane {
namespace {

// For how long a thread polls that has nothing to do from `from` on, looked at every microsecond.
Duration polled(SpinBudget& budget, Time from) {
  Time now = from;
  while (budget.may_poll(now)) now = now + microseconds(1);
  return now - from;
}

TEST(SpinBudget, LetsAThreadPollForItsTimeAfterEachPieceOfWork) {
  SpinBudget budget(microseconds(20), 1);
  EXPECT_EQ(polled(budget, Time(milliseconds(100).value)), microseconds(20));
  budget.worked();
  EXPECT_EQ(polled(budget, Time(milliseconds(101).value)), microseconds(20));
  // What comes before its time is over lets it begin anew.
  EXPECT_TRUE(budget.may_poll(Time(milliseconds(102).value)));
  budget.worked();
  EXPECT_EQ(polled(budget, Time(milliseconds(102).value) + microseconds(15)), microseconds(20));
}

TEST(SpinBudget, LetsNobodyPollInVainForMoreThanItsShare) {
  SpinBudget budget(microseconds(500), 0.25);
  Duration vain;
  Time now(seconds(1).value);
  // Work comes every 600 us: polling for it takes more than a quarter of 10 ms.
  for (int i = 0; i < 16; ++i, now = now + microseconds(600)) {
    vain += polled(budget, now);
    budget.worked();
  }
  EXPECT_GE(vain, microseconds(2500));
  EXPECT_LE(vain, microseconds(3000));
  // The next 10 ms are looked at for themselves.
  EXPECT_EQ(polled(budget, now + milliseconds(10)), microseconds(500));
}

TEST(SpinBudget, OfZeroNeverPolls) {
  SpinBudget budget(Duration(), 1);
  EXPECT_FALSE(budget.may_poll(Time(1)));
}

}  // namespace
}  // namespace tensorlane
