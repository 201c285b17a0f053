// Checker "limits": in no interval of length t does a host send more of a class than its rate times t, its burst and
// one operation (law 11); and it demotes nothing that it could have sent in its own class.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/units.h"
#include "simulator/checkers/findings.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One per host. A leaky bucket per class, which is the same as the rule above: what was sent fills it, the rate drains
// it, and nothing may be added to one that holds the burst.
class LimitChecker {
 public:
  LimitChecker(HostIndex host, const Scenario& scenario, Findings& findings)
      : host_(host), scenario_(scenario), findings_(findings) {}

  bool used_up(Time now, ClassId cls) const;
  // The class whose flows carry what belongs to `cls`.
  ClassId travels(Time now, ClassId cls) const;
  // From when on a class that is used up is not, if nothing is sent.
  Time ready_at(Time now, ClassId cls) const;
  // An operation of `bytes` that belongs to class `of` goes in class `in`.
  void sent(Time now, ClassId of, ClassId in, std::uint64_t bytes);

 private:
  struct Level {
    std::uint64_t filled = 0;  // in bit-nanoseconds per second
    Time at;
  };
  std::uint64_t level(Time now, ClassId cls) const;

  HostIndex host_;
  const Scenario& scenario_;
  Findings& findings_;
  std::array<Level, kMaxDataClasses> levels_{};
};

}  // namespace tensorlane::simulator
