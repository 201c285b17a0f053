// How long whoever polls should rest when there is nothing to do: not at first, then ever longer, up to a bound that is
// also the delay that a packet can meet. Law 17: the host's cores belong to the training.
#pragma once

#include <cstddef>
#include <optional>

#include "common/base/units.h"

namespace tensorlane::dpdk {

struct IdleLimits {
  Duration spin = microseconds(20);      // after the last packet, without a rest
  Duration first = microseconds(5);      // the first rest; each is twice as long as the one before
  Duration longest = microseconds(100);  // at least `first`
};

// One owner thread. Pure: the times of polls are given.
class IdlePolicy {
 public:
  explicit IdlePolicy(const IdleLimits& limits = {});

  // A turn has ended that has found so many packets to receive or to send. How long to rest before the next one; 0: not
  // at all.
  Duration rest(Time now, std::size_t packets);
  // Rests have reached the bound: a port with interrupts may arm them, and its owner sleep until one comes.
  bool may_block() const { return next_ >= limits_.longest; }

 private:
  IdleLimits limits_;
  std::optional<Time> last_packet_;  // or the first turn
  Duration next_;
};

}  // namespace tensorlane::dpdk
