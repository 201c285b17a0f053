// The event trace of `tensorlane-swarm --verbose`: one line per thing that happened, with virtual time and host.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "simulator/clock/event_queue.h"

namespace tensorlane::simulator {

class Trace {
 public:
  Trace(const EventQueue& events, bool on) : events_(events), on_(on) {}
  template <typename... Args>
  void line(HostIndex host, fmt::format_string<Args...> format, Args&&... args) const {
    if (!on_) return;
    fmt::print("{:>14.3f} us  host {}  {}\n", static_cast<double>(events_.now().value) / 1000, host.value,
               fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const EventQueue& events_;
  bool on_;
};

}  // namespace tensorlane::simulator
