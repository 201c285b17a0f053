#include "daemon/engine/iterations.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tensorlane::engine {
namespace {

std::string numbered(std::string name, int number) {
  return name.append(std::to_string(number));
}

// Tensors by name; what each operation's iteration was.
struct Training {
  std::uint64_t begin(const std::string& tensor) {
    Iteration& last = of[tensor];
    const Iteration now = iterations.begin(last);
    EXPECT_GE(now, last) << tensor;
    last = now;
    return now.value;
  }
  // All gradients, in this order.
  void iterate(int tensors) {
    for (int i = 0; i < tensors; ++i) begin(numbered("g", i));
  }
  Iterations iterations;
  std::map<std::string, Iteration> of;
};

TEST(Iterations, CountAsTensorsThatAllTakePartDo) {
  Training training;
  for (std::uint64_t iteration = 1; iteration <= 20; ++iteration) {
    for (int i = 0; i < 30; ++i) EXPECT_EQ(training.begin(numbered("g", i)), iteration);
  }
}

TEST(Iterations, ATensorThatComesLateDoesNotGoBeforeTheOthers) {
  Training training;
  for (int i = 0; i < 10; ++i) training.iterate(8);
  for (int t = 0; t < 3; ++t) EXPECT_EQ(training.begin(numbered("g", t)), 11u);
  EXPECT_EQ(training.begin("late"), 11u);
  for (int call = 0; call < 5; ++call) EXPECT_EQ(training.begin(numbered("unnamed ", call)), 11u);
}

TEST(Iterations, ATensorThatIsUsedNowAndThenTakesPartInTheNewestOne) {
  Training training;
  for (int i = 1; i <= 30; ++i) {
    training.iterate(4);
    if (i % 10 != 0) continue;
    EXPECT_EQ(training.begin("metric"), static_cast<std::uint64_t>(i));
  }
}

// A loss that is summed five times in every iteration neither runs ahead nor
// splits the gradients into two iterations.
TEST(Iterations, ATensorThatIsUsedOftenDoesNotRunAhead) {
  Training training;
  for (std::uint64_t i = 1; i <= 30; ++i) {
    for (int t = 0; t < 6; ++t) {
      const std::uint64_t of = training.begin(numbered("g", t));
      EXPECT_EQ(of, i);
      const std::uint64_t metric = training.begin("metric");
      EXPECT_GE(metric, i);
      EXPECT_LE(metric, i + 2);
    }
  }
}

// What the first iteration moved besides the gradients is not missed for ever.
TEST(Iterations, GoOnWhenTensorsCameOnlyOnce) {
  Training training;
  for (int i = 0; i < 6; ++i) training.begin(numbered("broadcast ", i));
  training.iterate(6);
  for (int i = 0; i < 4; ++i) training.iterate(6);
  const std::uint64_t before = training.begin("g0");
  for (int t = 1; t < 6; ++t) training.begin(numbered("g", t));
  EXPECT_EQ(training.begin("g0"), before + 1);
}

}  // namespace
}  // namespace tensorlane::engine
