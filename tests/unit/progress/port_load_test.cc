#include "daemon/progress/port_load.h"

#include <gtest/gtest.h>

namespace tensorlane::progress {
namespace {

constexpr ClassId kUrgent{0}, kMiddle{1}, kBulk{2};

// A port that is sampled once a second.
struct Port {
  PortLoad load;
  ClassBytes bytes{};
  Time now{seconds(100).value};

  explicit Port(BitsPerSecond speed = {}) : load(speed) { load.sample(now, now, bytes); }
  // One second, in which the classes carry so many megabits.
  void second(std::uint64_t urgent, std::uint64_t middle, std::uint64_t bulk, std::uint64_t control = 0) {
    now = now + seconds(1);
    bytes[0] += urgent * 125'000;
    bytes[1] += middle * 125'000;
    bytes[2] += bulk * 125'000;
    bytes.back() += control * 125'000;
    load.sample(now, now, bytes);
  }
};

TEST(PortLoad, classes_above_fill_it_from_half_of_its_speed_on) {
  Port port(BitsPerSecond(1'000'000'000));
  port.second(490, 0, 510);
  EXPECT_FALSE(port.load.filled_above(kBulk, port.now));
  port.second(250, 240, 0, 20);
  EXPECT_TRUE(port.load.filled_above(kBulk, port.now));
  EXPECT_FALSE(port.load.filled_above(kMiddle, port.now));
  port.second(510, 0, 0);
  EXPECT_TRUE(port.load.filled_above(kMiddle, port.now));
}

TEST(PortLoad, a_class_does_not_starve_itself_or_those_above) {
  Port port(BitsPerSecond(1'000'000'000));
  port.second(1000, 0, 0);
  EXPECT_FALSE(port.load.filled_above(kUrgent, port.now));
  port.second(0, 0, 1000);
  EXPECT_FALSE(port.load.filled_above(kMiddle, port.now));
  EXPECT_FALSE(port.load.filled_above(kControlClass, port.now));
}

TEST(PortLoad, without_a_described_link_the_highest_rate_counts) {
  Port port;
  port.second(30, 0, 0);  // alone on the port, but no port is as slow as that
  EXPECT_FALSE(port.load.filled_above(kBulk, port.now));
  port.second(600, 0, 0);
  EXPECT_TRUE(port.load.filled_above(kBulk, port.now));
  port.second(2000, 2000, 6000);
  EXPECT_FALSE(port.load.filled_above(kBulk, port.now));
  port.second(600, 0, 0);
  EXPECT_FALSE(port.load.filled_above(kBulk, port.now));
  port.second(3000, 3000, 0);
  EXPECT_TRUE(port.load.filled_above(kBulk, port.now));
}

TEST(PortLoad, only_two_samples_that_are_fresh_say_something) {
  PortLoad load(BitsPerSecond(1'000'000));
  const Time begin(seconds(5).value);
  load.sample(begin, begin, {1'000'000});
  EXPECT_FALSE(load.filled_above(kBulk, begin));
  load.sample(begin + milliseconds(1), begin + milliseconds(1), {9'000'000});  // as good as the same
  EXPECT_FALSE(load.filled_above(kBulk, begin));
  load.sample(begin + seconds(1), begin + seconds(1), {9'000'000});
  EXPECT_TRUE(load.filled_above(kBulk, begin + seconds(1)));
  EXPECT_TRUE(load.filled_above(kBulk, begin + seconds(4)));
  EXPECT_FALSE(load.filled_above(kBulk, begin + seconds(6)));
}

TEST(PortLoad, rates_go_by_the_clock_of_who_counted) {
  PortLoad load(BitsPerSecond(8'000'000));
  const Time theirs(seconds(9000).value), ours(seconds(5).value);
  load.sample(theirs, ours, {0});
  // A second's bytes, of which the word came after 100 ms, because the one before had been delayed.
  load.sample(theirs + seconds(1), ours + milliseconds(100), {400'000});
  EXPECT_FALSE(load.filled_above(kBulk, ours + milliseconds(100)));
}

}  // namespace
}  // namespace tensorlane::progress
