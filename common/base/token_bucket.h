// A limit on a rate that lets bursts pass, with a clock that is given. Exact: no rounding, so what passes in any
// interval of length t is at most rate * t + burst + the one take that emptied the bucket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/base/assert.h"
#include "common/base/units.h"

namespace tensorlane {

// What one sender may send: `rate` for long, `burst` at once. A rate of zero is no limit.
struct RateLimit {
  BitsPerSecond rate;
  Bytes burst;
  bool limited() const { return rate.value != 0; }
  bool operator==(const RateLimit&) const = default;
};

// Bounds of a RateLimit: within them nothing below overflows.
inline constexpr Bytes kMaxBurst = mib(1024);
inline constexpr BitsPerSecond kMaxLimitedRate{10'000'000'000'000};

// Full at first. A take may leave the bucket in debt: whoever asks empty() first is late by one take, never more. One
// owner thread; `now` must not go back (if it does, no time has passed).
class TokenBucket {
 public:
  TokenBucket() = default;  // no limit: never empty
  // At least one byte of burst, and within the bounds above.
  explicit TokenBucket(const RateLimit& limit)
      : rate_(static_cast<std::int64_t>(limit.rate.value)),
        capacity_(static_cast<std::int64_t>(limit.burst.value) * kByte),
        tokens_(capacity_) {
    TL_ASSERT(!limit.limited() || (limit.burst.value > 0 && limit.burst <= kMaxBurst && limit.rate <= kMaxLimitedRate));
  }

  bool limited() const { return rate_ != 0; }
  // Not a byte is left.
  bool empty(Time now) const { return now < empty_until_; }
  // When it no longer is, if it is now.
  Time ready_at() const { return empty_until_; }
  // Whole bytes that are left; of no limit, ~0.
  Bytes available(Time now) const {
    if (!limited()) return Bytes(~std::uint64_t{0});
    return Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(tokens_at(now), 0) / kByte));
  }
  void take(Time now, Bytes bytes) {
    if (!limited()) return;
    const std::int64_t before = tokens_at(now);
    const std::uint64_t room = (static_cast<std::uint64_t>(before) + static_cast<std::uint64_t>(kMostDebt)) / kByte;
    tokens_ = before - static_cast<std::int64_t>(std::min(bytes.value, room)) * kByte;
    at_ = std::max(at_, now);
    if (tokens_ <= 0) empty_until_ = at_ + Duration(-tokens_ / rate_ + 1);
  }

 private:
  // Tokens are counted in bit-nanoseconds per second, of which a rate in bit/s brings `rate` in a nanosecond.
  static constexpr std::int64_t kByte = 8'000'000'000;
  // What is taken beyond it is forgotten: half a gigabyte, which counts without an overflow.
  static constexpr std::int64_t kMostDebt = 4'000'000'000'000'000'000;

  std::int64_t tokens_at(Time now) const {
    const std::int64_t elapsed = std::max<std::int64_t>((now - at_).value, 0);
    return elapsed > (capacity_ - tokens_) / rate_ ? capacity_ : tokens_ + rate_ * elapsed;
  }

  std::int64_t rate_ = 0, capacity_ = 0, tokens_ = 0;
  Time at_, empty_until_{std::numeric_limits<std::int64_t>::min()};
};

}  // namespace tensorlane
