// DCQCN's reaction point: how fast a flow may send after congestion was notified (Zhu et al., "Congestion Control for
// Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.1, and its figure 14 for the numbers).
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::simulator {

struct DcqcnParameters {
  double g = 1.0 / 256;                      // weight of a notification in alpha
  Duration alpha_timer = microseconds(55);   // without a notification alpha decays once in this
  Duration rate_timer = microseconds(55);    // the rate increases once in this,
  Bytes byte_counter = Bytes(10'000'000);    // and once for so many bytes sent
  std::uint32_t fast_recovery = 5;           // increases of a kind before the target rate grows, too
  Duration notification = microseconds(50);  // a receiver notifies a flow's sender at most once in this
  BitsPerSecond additive{40'000'000};        // of the target rate
  BitsPerSecond hyper{200'000'000};          // the paper names no number: five times the additive step
  BitsPerSecond least{10'000'000};           // no flow is slower
};

// One flow's rate. Timers are made up for when the rate is asked for, so that a flow costs no events. A flow that is
// back at the line's rate is forgotten, as a NIC frees its limiter.
class DcqcnRate {
 public:
  explicit DcqcnRate(BitsPerSecond line) : line_(static_cast<double>(line.value)), current_(line_), target_(line_) {}

  // A notification came. `now` never goes back.
  void notified(Time now, const DcqcnParameters& p);
  // So much leaves now.
  void sent(Time now, Bytes bytes, const DcqcnParameters& p);
  // Bits per second from `now` on.
  double rate(Time now, const DcqcnParameters& p);

  bool limited() const { return limited_; }
  double alpha() const { return alpha_; }
  double target() const { return target_; }

 private:
  void advance(Time now, const DcqcnParameters& p);
  void increase(const DcqcnParameters& p);

  double line_, current_, target_, alpha_ = 1;
  bool limited_ = false;
  Time alpha_at_, rate_at_;  // when the timers fire next
  std::uint64_t bytes_ = 0;  // since the byte counter's last increase
  std::uint32_t timer_increases_ = 0, byte_increases_ = 0;
};

}  // namespace tensorlane::simulator
