#include "common/base/token_bucket.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace tensorlane {
namespace {

TEST(TokenBucket, WithoutALimitIsNeverEmpty) {
  TokenBucket bucket;
  bucket.take(Time(0), mib(1 << 20));
  EXPECT_FALSE(bucket.limited());
  EXPECT_FALSE(bucket.empty(Time(0)));
  EXPECT_EQ(bucket.available(Time(0)).value, ~std::uint64_t{0});
}

TEST(TokenBucket, IsFullAtFirstAndNeverFuller) {
  TokenBucket bucket({BitsPerSecond(8000), Bytes(100)});  // a byte in a millisecond
  EXPECT_EQ(bucket.available(Time(0)), Bytes(100));
  EXPECT_EQ(bucket.available(Time(0) + seconds(1'000'000)), Bytes(100));
  bucket.take(Time(0), Bytes(60));
  EXPECT_EQ(bucket.available(Time(0)), Bytes(40));
  EXPECT_EQ(bucket.available(Time(0) + milliseconds(30)), Bytes(70));
  EXPECT_EQ(bucket.available(Time(0) + seconds(1)), Bytes(100));
}

TEST(TokenBucket, DebtIsPaidBeforeItIsReady) {
  TokenBucket bucket({BitsPerSecond(8000), Bytes(100)});
  bucket.take(Time(0), Bytes(150));
  EXPECT_TRUE(bucket.empty(Time(0)));
  EXPECT_TRUE(bucket.empty(Time(50'000'000)));  // nothing owed, nothing there
  EXPECT_EQ(bucket.ready_at(), Time(50'000'001));
  EXPECT_FALSE(bucket.empty(Time(50'000'001)));
  EXPECT_EQ(bucket.available(Time(51'000'000)), Bytes(1));
  EXPECT_TRUE(bucket.empty(Time(0)));  // a clock that goes back brings nothing
}

TEST(TokenBucket, HoldsAtItsBounds) {
  TokenBucket fast({kMaxLimitedRate, kMaxBurst}), slow({BitsPerSecond(1), kMaxBurst});
  for (TokenBucket* bucket : {&fast, &slow}) {
    bucket->take(Time(0), kMaxBurst);
    EXPECT_TRUE(bucket->empty(Time(0)));
    bucket->take(Time(0), kMaxOperation);
    EXPECT_EQ(bucket->available(Time(std::numeric_limits<std::int64_t>::max())), kMaxBurst);
  }
  EXPECT_GT(slow.ready_at(), Time(0) + seconds(8 * 256 * 1024));
}

// What is taken at once may be more than the bucket can count: it stays empty, and for no longer than half a gigabyte.
TEST(TokenBucket, OwesNoMoreThanItCanCount) {
  TokenBucket bucket({BitsPerSecond(8'000'000'000), Bytes(1000)});
  for (int i = 0; i < 3; ++i) {
    bucket.take(Time(0), Bytes(2'305'843'010));
    EXPECT_TRUE(bucket.empty(Time(0) + milliseconds(400)));
    EXPECT_FALSE(bucket.empty(Time(0) + seconds(1)));
  }
}

// The promise: in every interval at most rate * t + burst + the one take that emptied it; and no less than that is let
// pass to whoever asks all the time.
TEST(TokenBucket, LetsPassTheRateAndNoMore) {
  std::mt19937 random(3);
  for (const std::uint64_t rate : {8'000'000ull, 999'999'937ull, 400'000'000'000ull}) {
    constexpr std::uint64_t kBurst = 10'000;
    TokenBucket bucket({BitsPerSecond(rate), Bytes(kBurst)});
    struct Take {
      std::int64_t at;
      std::uint64_t bytes;
    };
    std::vector<Take> takes;
    std::int64_t now = 0;
    std::uint64_t passed = 0;
    for (int i = 0; i < 3000; ++i) {
      now += random() % 2000;
      const std::uint64_t bytes = 1 + random() % 3000;
      if (bucket.empty(Time(now))) continue;
      bucket.take(Time(now), Bytes(bytes));
      takes.push_back({now, bytes});
      passed += bytes;
    }
    for (std::size_t from = 0; from < takes.size(); from += 7) {
      std::uint64_t bytes = 0;
      for (std::size_t to = from; to < takes.size(); ++to) {
        bytes += takes[to].bytes;
        const double most =
            static_cast<double>(rate) / 8e9 * static_cast<double>(takes[to].at - takes[from].at) + kBurst;
        ASSERT_LE(static_cast<double>(bytes - takes[to].bytes), most) << rate;
      }
    }
    if (rate > 1'000'000'000) continue;  // more than was asked for
    EXPECT_GE(static_cast<double>(passed), static_cast<double>(rate) / 8e9 * static_cast<double>(now));
  }
}

}  // namespace
}  // namespace tensorlane
