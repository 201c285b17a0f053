// Makes the transport's epoll descriptor readable when there is work that no socket announces.
#pragma once

#include <optional>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/transport/handshake/socket.h"

namespace tensorlane::handshake {

// Two descriptors: an eventfd for work that waits now (queued operations, closed flows), a timerfd for work that comes
// due (retries, time-outs, a full window). One thread. Times are the caller's; a timer that fires early or late costs
// one empty poll, nothing else.
class Waker {
 public:
  // Registers both in `epoll` with `data` as their event data. Errors: kResourceExhausted (descriptors).
  Status open(int epoll, void* data);

  // There is work now.
  void kick();
  // There is work at `due`. Keeps the earliest.
  void wake_at(Time now, Time due);
  // poll() has begun: what was kicked for is about to be done.
  void clear_kick();
  // epoll has reported one of our descriptors: if it was the timer, it is armed no more.
  void clear_timer();

 private:
  Fd event_;
  Fd timer_;
  bool kicked_ = false;
  std::optional<Time> due_;
};

}  // namespace tensorlane::handshake
