#include "daemon/wiring/watchdog.h"

#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

namespace tensorlane::wiring {
namespace {

constexpr std::int64_t kLooks = 8,
                       kPatience = 2;  // looks within the watchdog's time; the share of it that may be still
constexpr Duration kUnwatched = seconds(3600);

Duration watchdog_time() {
  std::uint64_t us = 0;
  return sd_watchdog_enabled(0, &us) > 0 ? microseconds(static_cast<std::int64_t>(us)) : Duration();
}

Time clock_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Time(t.tv_sec * 1'000'000'000ll + t.tv_nsec);
}

}  // namespace

Watchdog::Watchdog(Turns turns)
    : turns_(std::move(turns)), within_(watchdog_time()), pulse_(Duration(within_.value / kPatience)) {}

timespec Watchdog::period() const {
  const Duration period = within_.value > 0 ? Duration(within_.value / kLooks) : kUnwatched;
  return {static_cast<time_t>(period.value / 1'000'000'000), static_cast<long>(period.value % 1'000'000'000)};
}

void Watchdog::look() {
  if (within_.value == 0) return;
  const Time now = clock_now();
  for (const auto& [thread, count] : turns_()) pulse_.look(thread, count, now);
  std::vector<std::string> still = pulse_.still(now);
  if (still.empty()) sd_notify(0, "WATCHDOG=1");
  if (still != still_) {
    for (const std::string& thread : still)
      spdlog::critical("the thread {} stands still: the service manager is not told that the daemon is alive", thread);
  }
  still_ = std::move(still);
}

}  // namespace tensorlane::wiring
