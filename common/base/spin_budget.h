// How long a thread with nothing to do may poll before it sleeps (law 17).
#pragma once

#include "common/base/units.h"

namespace tensorlane {

// For one thread. It polls for at most `spin` after its last work, and in vain for at most `share` of the time, looked
// at every 10 ms.
class SpinBudget {
 public:
  SpinBudget(Duration spin, double share) : spin_(spin), share_(share) {}

  // It has had something to do.
  void worked() { idle_since_ = Time(); }
  // It has nothing to do at `now`: whether it may poll on. After false it sleeps, and begins anew.
  bool may_poll(Time now) {
    if (idle_since_ == Time()) idle_since_ = now;
    if (now - window_start_ > kWindow) {
      window_start_ = now;
      spun_ = Duration();
    }
    const Duration idle = now - idle_since_;
    if (idle < spin_ && to_seconds(spun_) < share_ * to_seconds(kWindow)) return true;
    spun_ += idle;
    idle_since_ = Time();
    return false;
  }

 private:
  static constexpr Duration kWindow = milliseconds(10);
  const Duration spin_;
  const double share_;
  Time idle_since_, window_start_;
  Duration spun_;
};

}  // namespace tensorlane
