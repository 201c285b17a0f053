// Bounds the log lines that each user's jobs bring about, so that nobody floods the journal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "common/base/units.h"

namespace tensorlane {

// Each user has kBurst lines, and gets one back in every kEach. It remembers as many users as ask: those that a daemon
// serves. One thread.
class LogShare {
 public:
  static constexpr std::int64_t kBurst = 100;
  static constexpr Duration kEach = milliseconds(500);

  // Nothing: hold this line back. Otherwise write it; the number says how many of the user's were held back since the
  // last one that passed (held_back_text() of log_gate.h).
  std::optional<std::uint64_t> pass(std::uint32_t user, Time now) {
    Share& share = users_[user];
    const Time from = std::max(share.full_at, now);
    if (from - now > kEach * (kBurst - 1)) {
      ++share.held_back;
      return std::nullopt;
    }
    share.full_at = from + kEach;
    return std::exchange(share.held_back, 0);
  }

 private:
  struct Share {
    Time full_at;  // when the user has all kBurst lines again
    std::uint64_t held_back = 0;
  };
  std::map<std::uint32_t, Share> users_;
};

}  // namespace tensorlane
