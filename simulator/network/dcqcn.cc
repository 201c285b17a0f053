#include "simulator/network/dcqcn.h"

#include <algorithm>

namespace tensorlane::simulator {

void DcqcnRate::notified(Time now, const DcqcnParameters& p) {
  advance(now, p);
  // Equation 1: the rate is cut by what is known of congestion, which is then known to be more.
  target_ = current_;
  current_ = std::max(current_ * (1 - alpha_ / 2), static_cast<double>(p.least.value));
  alpha_ = (1 - p.g) * alpha_ + p.g;
  limited_ = true;
  bytes_ = timer_increases_ = byte_increases_ = 0;
  alpha_at_ = now + p.alpha_timer;
  rate_at_ = now + p.rate_timer;
}

void DcqcnRate::sent(Time now, Bytes bytes, const DcqcnParameters& p) {
  advance(now, p);
  if (!limited_) return;
  for (bytes_ += bytes.value; limited_ && bytes_ >= p.byte_counter.value; bytes_ -= p.byte_counter.value) {
    ++byte_increases_;
    increase(p);
  }
}

double DcqcnRate::rate(Time now, const DcqcnParameters& p) {
  advance(now, p);
  return current_;
}

void DcqcnRate::advance(Time now, const DcqcnParameters& p) {
  for (; limited_ && rate_at_ <= now; rate_at_ = rate_at_ + p.rate_timer) {
    ++timer_increases_;
    increase(p);
  }
  // Equation 2.
  for (; limited_ && alpha_at_ <= now; alpha_at_ = alpha_at_ + p.alpha_timer) alpha_ *= 1 - p.g;
}

// Figure 7: fast recovery (equation 3), additive increase (equation 4), hyper increase.
void DcqcnRate::increase(const DcqcnParameters& p) {
  const std::uint32_t more = std::max(timer_increases_, byte_increases_);
  const std::uint32_t fewer = std::min(timer_increases_, byte_increases_);
  if (fewer > p.fast_recovery) {
    target_ += static_cast<double>(p.hyper.value) * (fewer - p.fast_recovery);
  } else if (more > p.fast_recovery) {
    target_ += static_cast<double>(p.additive.value);
  }
  target_ = std::min(target_, line_);
  current_ = (target_ + current_) / 2;
  // Halving the distance never ends: the last thousandth is given.
  if (target_ < line_ || current_ < line_ * 0.999) return;
  *this = DcqcnRate(BitsPerSecond(static_cast<std::uint64_t>(line_)));
}

}  // namespace tensorlane::simulator
