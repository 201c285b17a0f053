// Commands that wait for the lane's thread.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "common/base/units.h"
#include "daemon/lane/preparer.h"

namespace tensorlane::lane {

// Those of one job stay in order; jobs take turns, so that nobody's thousands of tensors hold up what others wait for.
// The lane's thread.
class Backlogs {
 public:
  void add(Command command);
  bool empty() const { return of_jobs_.empty(); }
  bool has(JobId job) const;
  // Carries out what waits, for about `time`, by the clock `now`: one command more than fits. Returns how many it ran.
  std::size_t run(Duration time, Time (*now)());

 private:
  struct OfJob {
    JobId job;
    std::deque<Command> commands;
  };
  std::vector<OfJob> of_jobs_;  // none is empty
  std::size_t turn_ = 0;
};

}  // namespace tensorlane::lane
