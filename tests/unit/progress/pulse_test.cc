#include "daemon/progress/pulse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorlane::progress {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Time at(std::int64_t milliseconds_since) {
  return Time(milliseconds(milliseconds_since).value);
}

TEST(Pulse, a_thread_that_counts_is_alive) {
  Pulse pulse(seconds(1));
  for (std::int64_t t = 0; t < 100; ++t) {
    pulse.look("lane", static_cast<std::uint64_t>(t), at(t * 900));
    EXPECT_THAT(pulse.still(at(t * 900)), IsEmpty());
  }
}

TEST(Pulse, the_thread_that_stands_still_is_named) {
  Pulse pulse(seconds(1));
  pulse.look("lane", 7, at(0));
  pulse.look("control", 3, at(0));
  pulse.look("lane", 8, at(900));
  pulse.look("control", 3, at(900));
  EXPECT_THAT(pulse.still(at(900)), IsEmpty());
  EXPECT_THAT(pulse.still(at(1100)), ElementsAre("control"));
  pulse.look("control", 4, at(1200));
  EXPECT_THAT(pulse.still(at(1300)), IsEmpty());
  EXPECT_THAT(pulse.still(at(5000)), ElementsAre("lane", "control"));
}

}  // namespace
}  // namespace tensorlane::progress
