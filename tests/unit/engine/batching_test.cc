// Caramel's network model (section 4.2) and depth (section 4.4), on the paper's formulas.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "daemon/engine/batching/network_model.h"

namespace tensorlane::engine {
namespace {

// 10 us, then 1 ns per byte: 8 Gbit/s.
const NetworkModel kNetwork = NetworkModel::of(microseconds(10), BitsPerSecond(8'000'000'000));

// ---- the network model and the threshold (4.2) ----

TEST(NetworkModel, IsTheLineThroughTheTwoSizes) {
  const std::vector<TransferSample> samples{{kSmallSample, kNetwork.time(kSmallSample)},
                                            {kLargeSample, kNetwork.time(kLargeSample)}};
  const auto model = NetworkModel::fit(samples);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_NEAR(model->overhead_ns(), 10'000, 1);
  EXPECT_NEAR(model->ns_per_byte(), 1, 1e-6);
  EXPECT_EQ(model->time(mib(100)), kNetwork.time(mib(100)));
  EXPECT_EQ(kNetwork.time(Bytes(1000)), microseconds(11));
}

TEST(NetworkModel, FitsNoisySamplesByLeastSquares) {
  std::vector<TransferSample> samples;
  for (const std::int64_t noise : {-500, 0, 500}) {
    samples.push_back({kSmallSample, kNetwork.time(kSmallSample) + nanoseconds(noise)});
    samples.push_back({kLargeSample, kNetwork.time(kLargeSample) + nanoseconds(noise)});
  }
  const auto model = NetworkModel::fit(samples);
  ASSERT_TRUE(model.ok());
  EXPECT_NEAR(model->overhead_ns(), 10'000, 1);
  EXPECT_NEAR(model->ns_per_byte(), 1, 1e-6);
}

TEST(NetworkModel, RefusesWhatIsNoLine) {
  EXPECT_EQ(NetworkModel::fit({}).status().code(), Code::kInvalidArgument);
  const std::vector<TransferSample> one_size{{kSmallSample, Duration(5)}, {kSmallSample, Duration(9)}};
  EXPECT_EQ(NetworkModel::fit(one_size).status().code(), Code::kInvalidArgument);
  const std::vector<TransferSample> falling{{kSmallSample, Duration(9)}, {kLargeSample, Duration(5)}};
  EXPECT_EQ(NetworkModel::fit(falling).status().code(), Code::kInvalidArgument);
  // Faster than proportional: no overhead, not a negative one.
  const std::vector<TransferSample> steep{{kSmallSample, Duration(0)}, {kLargeSample, milliseconds(5)}};
  const auto model = NetworkModel::fit(steep);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->overhead_ns(), 0);
  EXPECT_EQ(model->threshold(), Bytes(1));
}

// The formula as the paper prints it, f(2x) / (2 f(x)), tried for every x.
TEST(Threshold, IsTheLeastThatFulfilsTheFormula) {
  for (const std::int64_t overhead : {0, 1, 7, 100, 999, 12'345}) {
    for (const std::uint64_t rate : {1'000'000'000ull, 8'000'000'000ull, 100'000'000'000ull}) {
      const NetworkModel model = NetworkModel::of(nanoseconds(overhead), BitsPerSecond(rate));
      const auto f = [&](std::uint64_t x) {
        return static_cast<long double>(overhead) + static_cast<long double>(x) * 8e9L / static_cast<long double>(rate);
      };
      std::uint64_t x = 1;
      // A product, so that equality is exact: f(2x) > 0.8 * 2 f(x) <=> 5 f(2x) > 8 f(x).
      while (!(5 * f(2 * x) > 8 * f(x) + 1e-9L)) ++x;
      EXPECT_EQ(model.threshold(), Bytes(x)) << overhead << " ns, " << rate << " bit/s";
    }
  }
}

TEST(Threshold, OfThisNetwork) {
  EXPECT_EQ(kNetwork.threshold(), Bytes(15'001));  // 1.5 * 10 us * 1 byte/ns, and more
}

// ---- depth (4.4) ----

static_assert(adaptive_depth(Bytes(0), Bytes(100)) == 1);
static_assert(adaptive_depth(Bytes(199), Bytes(100)) == 1);
static_assert(adaptive_depth(Bytes(200), Bytes(100)) == 2);
static_assert(adaptive_depth(Bytes(799), Bytes(100)) == 7);
static_assert(adaptive_depth(Bytes(800), Bytes(100)) == 8);
static_assert(adaptive_depth(mib(100), Bytes(100)) == 8);

TEST(Depth, GrowsFromOneToEightAndKeepsPiecesAtTheThreshold) {
  const Bytes threshold = kNetwork.threshold();
  std::uint32_t before = 1;
  for (std::uint64_t size = 1; size < mib(1).value; size += 997) {
    const std::uint32_t depth = adaptive_depth(Bytes(size), threshold);
    EXPECT_GE(depth, before);
    before = depth;
    EXPECT_TRUE(depth == 1 || size / depth >= threshold.value);
  }
  EXPECT_EQ(before, kDeepest);
}

}  // namespace
}  // namespace tensorlane::engine
