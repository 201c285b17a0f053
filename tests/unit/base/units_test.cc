#include "common/base/units.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

#include "common/base/descriptor.h"
#include "common/base/dtype.h"

namespace tensorlane {
namespace {

static_assert(!std::is_convertible_v<Bytes, Duration>);
static_assert(!std::is_convertible_v<std::uint64_t, Bytes>);
static_assert(!std::is_convertible_v<Rank, TensorId>);
static_assert(!std::is_constructible_v<Time, Duration>);

TEST(Units, QuantitiesAddScaleAndCompare) {
  EXPECT_EQ(kib(3) + Bytes(1), Bytes(3073));
  EXPECT_EQ(mib(1) - kib(1), kib(1023));
  EXPECT_EQ(kib(2) * 3, kib(6));
  EXPECT_LT(kib(1), mib(1));
  Bytes sum;
  sum += kib(1);
  sum += kib(1);
  sum -= Bytes(1);
  EXPECT_EQ(sum.value, 2047u);
}

TEST(Units, TimesDifferByDurations) {
  const Time begin(1'000);
  const Time end = begin + microseconds(5);
  EXPECT_EQ(end.value, 6'000);
  EXPECT_EQ(end - begin, nanoseconds(5'000));
  EXPECT_EQ(begin - end, nanoseconds(-5'000));
  EXPECT_LT(begin, end);
  EXPECT_DOUBLE_EQ(to_seconds(milliseconds(1500)), 1.5);
  EXPECT_EQ(seconds(2), milliseconds(2000));
}

TEST(Units, ALinkCarriesAnEighthOfItsBitsInBytes) {
  EXPECT_EQ(bytes_per_second(BitsPerSecond(500'000'000)), 62'500'000u);
}

TEST(Units, IndicesAreKeys) {
  std::unordered_set<TensorId> seen{TensorId(1), TensorId(2), TensorId(1)};
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(seen.contains(TensorId(2)));
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(dtype_size(Dtype::kFloat32), 4u);
  EXPECT_EQ(dtype_size(Dtype::kFloat64), 8u);
  EXPECT_EQ(dtype_size(Dtype::kFloat16), 2u);
  EXPECT_EQ(dtype_size(Dtype::kBfloat16), 2u);
  EXPECT_EQ(dtype_size(static_cast<Dtype>(9)), 0u);
  EXPECT_STREQ(dtype_name(Dtype::kBfloat16), "bfloat16");
  EXPECT_STREQ(dtype_name(static_cast<Dtype>(9)), "unknown");
  EXPECT_STREQ(operation_name(Operation::kAllgather), "allgather");
}

TEST(Descriptor, ASliceStaysInItsRegion) {
  const Descriptor whole{.region = 3, .generation = 9, .offset = 100, .length = 50};
  EXPECT_EQ(whole.slice(10, 20), (Descriptor{.region = 3, .generation = 9, .offset = 110, .length = 20}));
}

}  // namespace
}  // namespace tensorlane
