// What the service manager's watchdog is told (sd_watchdog_enabled): that the daemon turns, as long as every thread
// that jobs wait for does.
#pragma once

#include <time.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"
#include "daemon/progress/pulse.h"

namespace tensorlane::wiring {

// One thread.
class Watchdog {
 public:
  // The threads, and how often each has turned: at least two times in a second where it turns at all.
  using Turns = std::function<std::vector<std::pair<std::string, std::uint64_t>>()>;
  explicit Watchdog(Turns turns);

  // How long to wait between two calls of look(): an hour where nobody watches.
  timespec period() const;
  // Says that the daemon is alive, unless a thread stands still: that is logged once.
  void look();

 private:
  Turns turns_;
  Duration within_{};  // somebody wants to hear of us; 0: nobody does
  progress::Pulse pulse_;
  std::vector<std::string> still_;
};

}  // namespace tensorlane::wiring
