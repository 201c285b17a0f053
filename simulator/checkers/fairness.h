// Checker "neighbour", of what a machine's jobs share: inside a class users take turns (laws 9 and 11). Who has
// something that could go, or be summed, waits while others get a few turns, and no longer.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "common/base/units.h"
#include "simulator/checkers/findings.h"

namespace tensorlane::simulator {

// One per host.
class FairnessChecker {
 public:
  FairnessChecker(HostIndex host, Findings& findings) : host_(host), findings_(findings) {}
  // While somebody else got so many bytes of this class on the rail, the job had something that could go in it, or
  // not.
  void passed_over(std::size_t job, RailIndex rail, ClassId cls, std::uint64_t bytes, bool could_go);
  void sent(std::size_t job, RailIndex rail, ClassId cls) { sends_.erase({job, rail, cls}); }
  // The same of arithmetic and copying.
  void work_passed_over(std::size_t job, std::uint64_t cost, bool had_work);
  void worked(std::size_t job) { works_.erase(job); }

 private:
  const HostIndex host_;
  Findings& findings_;
  std::map<std::tuple<std::size_t, RailIndex, ClassId>, std::uint64_t> sends_;  // bytes of others since its turn
  std::map<std::size_t, std::uint64_t> works_;
};

}  // namespace tensorlane::simulator
