#include "daemon/control/liveness.h"

#include <algorithm>

namespace tensorlane::control {

void Liveness::add(const std::string& host, Time now) {
  hosts_[host] = now + Duration(patience().value / 2);
  checked_ = now;
}

void Liveness::heard(const std::string& host, Time now) {
  const auto it = hosts_.find(host);
  if (it != hosts_.end()) it->second = std::max(it->second, now);
}

std::optional<Duration> Liveness::silence(const std::string& host, Time now) const {
  const auto it = hosts_.find(host);
  if (it == hosts_.end()) return std::nullopt;
  return std::max(now - it->second, Duration(0));
}

Liveness::Verdict Liveness::check(Time now) {
  Verdict verdict;
  const Duration pause = checked_ ? now - *checked_ : Duration(0);
  checked_ = now;
  if (pause > detection_) {
    verdict.own_pause = pause;
    return verdict;
  }
  // A pause of up to two intervals is what a loaded machine does and costs little of the patience; a longer one is
  // ours, not the peers'.
  if (pause > interval() * 2) {
    for (auto& [host, heard] : hosts_) heard = std::min(heard + pause, std::max(heard, now));
  }
  for (const auto& [host, heard] : hosts_) {
    const Duration silence = now - heard;
    if (silence > patience() && silence > verdict.silence) {
      verdict.dead = host;
      verdict.silence = silence;
    }
  }
  return verdict;
}

bool Liveness::due(Time now) {
  if (sent_ && now - *sent_ < interval()) return false;
  sent_ = now;
  return true;
}

}  // namespace tensorlane::control
