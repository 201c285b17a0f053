#include "simulator/checkers/limits.h"

namespace tensorlane::simulator {
namespace {
constexpr std::uint64_t kByte = 8'000'000'000;  // so that a rate in bit/s drains `rate` in a nanosecond
}

std::uint64_t LimitChecker::level(Time now, ClassId cls) const {
  const Level& l = levels_[cls.value];
  const std::uint64_t rate = scenario_.engine.limits[cls.value].rate.value;
  const auto passed = static_cast<std::uint64_t>((now - l.at).value);
  return passed > l.filled / rate ? 0 : l.filled - passed * rate;
}

bool LimitChecker::used_up(Time now, ClassId cls) const {
  const RateLimit& limit = scenario_.engine.limits[cls.value];
  return limit.limited() && level(now, cls) >= limit.burst.value * kByte;
}

Time LimitChecker::ready_at(Time now, ClassId cls) const {
  const RateLimit& limit = scenario_.engine.limits[cls.value];
  const std::uint64_t over = level(now, cls) - limit.burst.value * kByte;
  return now + Duration(static_cast<std::int64_t>(over / limit.rate.value + 1));
}

ClassId LimitChecker::travels(Time now, ClassId cls) const {
  while (used_up(now, cls)) ++cls.value;  // the last class has no limit
  return cls;
}

void LimitChecker::sent(Time now, ClassId of, ClassId in, std::uint64_t bytes) {
  if (in < of || travels(now, of) != in) {
    findings_.fail("limits", "host {}: {} bytes of class {} go in class {}, but its limits say class {}", host_.value,
                   bytes, of.value, in.value, travels(now, of).value);
  }
  if (!scenario_.engine.limits[in.value].limited()) return;
  levels_[in.value] = {level(now, in) + bytes * kByte, now};
}

}  // namespace tensorlane::simulator
