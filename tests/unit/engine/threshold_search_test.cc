// Geryon's search for thresholds, fed with iteration times from formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "daemon/engine/classify/threshold_search.h"

namespace tensorlane::engine {
namespace {

using Time = std::function<double(const std::vector<double>&)>;

std::vector<Weighted> layers(std::size_t n) {
  std::vector<Weighted> tensors;
  for (std::size_t i = 0; i < n; ++i)
    tensors.push_back({1 - static_cast<double>(i) / static_cast<double>(n), Bytes(1000)});
  return tensors;
}

// Runs iterations until the search has chosen; what all of them took.
double run(ThresholdSearch& search, const Time& time, int most = 100) {
  double all = 0;
  for (int i = 0; i < most && search.searching(); ++i) {
    const double seconds = time(search.thresholds());
    all += seconds;
    search.observe(seconds);
  }
  EXPECT_FALSE(search.searching());
  return all;
}

double valley(const std::vector<double>& thresholds, double at, double depth) {
  return thresholds.empty() ? 1 : 1 - depth * std::max(0.0, 1 - std::pow((thresholds[0] - at) / 0.5, 2));
}

TEST(ThresholdSearch, FindsTheLeastTimeBetweenWhatItTries) {
  for (const double at : {0.2, 0.37, 0.5, 0.63, 0.8}) {
    const auto time = [&](const std::vector<double>& t) { return valley(t, at, 0.3); };
    ThresholdSearch search(layers(50));
    run(search, time);
    ASSERT_EQ(search.thresholds().size(), 1u);
    EXPECT_LE(time(search.thresholds()), time({at}) * 1.01) << at << " and not " << search.thresholds()[0];
    EXPECT_DOUBLE_EQ(search.single_class_s(), 1);
    EXPECT_DOUBLE_EQ(search.chosen_s(), time(search.thresholds()));
  }
}

TEST(ThresholdSearch, TheFitFindsWhatNoTrialWasAt) {
  // Narrow, and none of the trials is near: without the fitted cut the best of them is far off.
  const auto time = [](const std::vector<double>& t) { return valley(t, 0.57, 0.3); };
  ThresholdSettings coarse;
  coarse.tried = 3;
  ThresholdSearch search(layers(100), coarse);
  run(search, time);
  EXPECT_NEAR(search.thresholds()[0], 0.57, 0.03);
}

TEST(ThresholdSearch, GoesBackToOneClassWhereNothingIsGained) {
  for (const double loss : {0.0, 0.005, -0.005, 0.1}) {
    ThresholdSearch search(layers(20));
    run(search, [&](const std::vector<double>& t) { return t.empty() ? 1 : 1 + loss; });
    EXPECT_TRUE(search.thresholds().empty()) << loss;
  }
}

TEST(ThresholdSearch, ALuckyTrialIsNotBelieved) {
  // The machine is fast while the third trial runs, once.
  int iteration = 0;
  ThresholdSearch search(layers(20));
  run(search,
      [&](const std::vector<double>& t) { return ++iteration >= 8 && iteration < 14 && !t.empty() ? 0.97 : 1; });
  EXPECT_TRUE(search.thresholds().empty());
}

TEST(ThresholdSearch, AddsAClassOnlyForItsWorth) {
  ThresholdSettings three;
  three.most_classes = 4;
  three.bound = 1;
  const auto time = [](const std::vector<double>& t) {
    double seconds = valley(t, 0.8, 0.2);
    if (t.size() > 1) seconds -= 0.1 * std::max(0.0, 1 - std::abs(t[1] - 0.4) / 0.2);
    return seconds;  // a fourth class changes nothing
  };
  ThresholdSearch search(layers(40), three);
  run(search, time, 400);
  ASSERT_EQ(search.thresholds().size(), 2u);
  EXPECT_NEAR(search.thresholds()[0], 0.8, 0.1);
  EXPECT_NEAR(search.thresholds()[1], 0.4, 0.1);
}

TEST(ThresholdSearch, TrialsCostNoMoreThanTheirBound) {
  for (const double worse : {1.05, 1.2, 1.5, 3.0, 10.0}) {
    ThresholdSearch search(layers(50));
    run(search, [&](const std::vector<double>& t) { return t.empty() ? 1 : worse; });
    EXPECT_LE(search.cost_s(), 0.05 * 100 + 2 * (worse - 1)) << "times " << worse;
    EXPECT_TRUE(search.thresholds().empty());
  }
}

TEST(ThresholdSearch, SearchesAgainWhenTheJobHasChangedButNotTooSoon) {
  double at = 0.25, slower = 1;
  const auto time = [&](const std::vector<double>& t) { return slower * valley(t, at, 0.3); };
  ThresholdSearch search(layers(50));
  run(search, time);
  EXPECT_NEAR(search.thresholds()[0], 0.25, 0.1);
  at = 0.75, slower = 1.4;
  int iterations = 0;
  for (; !search.searching() && iterations < 1000; ++iterations) search.observe(time(search.thresholds()));
  EXPECT_GE(iterations, 100);
  EXPECT_LE(iterations, 110);
  run(search, time);
  EXPECT_EQ(search.searches(), 2u);
  EXPECT_NEAR(search.thresholds()[0], 0.75, 0.1);
  // What stays the same is left alone.
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(search.observe(time(search.thresholds()) * (i % 2 == 0 ? 1.1 : 0.9)));
}

TEST(ThresholdSearch, OneUrgencyHasNothingToSearch) {
  const std::vector<Weighted> alike(5, {0.5, Bytes(100)});
  ThresholdSearch search(alike);
  EXPECT_FALSE(search.searching());
  EXPECT_FALSE(search.observe(1));
  EXPECT_TRUE(search.thresholds().empty());
}

}  // namespace
}  // namespace tensorlane::engine
