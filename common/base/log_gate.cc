#include "common/base/log_gate.h"

#include <fmt/format.h>

#include <utility>

namespace tensorlane {

bool LogGate::open(Time now, std::string_view cause) {
  std::erase_if(passed_, [&](const auto& entry) { return now - entry.second >= seconds(1); });
  if (passed_.contains(cause) || passed_.size() >= kPerSecond) {
    ++held_back_;
    return false;
  }
  passed_.emplace(cause, now);
  return true;
}

std::optional<std::uint64_t> LogGate::pass(Time now, std::string_view cause) {
  if (!open(now, cause)) return std::nullopt;
  return std::exchange(held_back_, 0);
}

std::string held_back_text(std::uint64_t lines) {
  return lines == 0 ? std::string() : fmt::format(" ({} more such since the last message)", lines);
}

}  // namespace tensorlane
