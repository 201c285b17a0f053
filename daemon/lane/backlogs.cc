#include "daemon/lane/backlogs.h"

#include <algorithm>

namespace tensorlane::lane {

void Backlogs::add(Command command) {
  auto of_job = std::ranges::find(of_jobs_, command.job, &OfJob::job);
  if (of_job == of_jobs_.end()) {
    of_jobs_.push_back({command.job, {}});
    of_job = of_jobs_.end() - 1;
  }
  of_job->commands.push_back(std::move(command));
}

bool Backlogs::has(JobId job) const {
  return std::ranges::find(of_jobs_, job, &OfJob::job) != of_jobs_.end();
}

std::size_t Backlogs::run(Duration time, Time (*now)()) {
  std::size_t count = 0;
  const Time until = now() + time;
  while (!of_jobs_.empty() && (count == 0 || now() < until)) {
    if (turn_ >= of_jobs_.size()) turn_ = 0;
    OfJob& of_job = of_jobs_[turn_];
    if (of_job.commands.front().run()) of_job.commands.pop_front();
    ++count;
    if (of_job.commands.empty()) {
      of_jobs_.erase(of_jobs_.begin() + static_cast<std::ptrdiff_t>(turn_));
    } else {
      ++turn_;
    }
  }
  return count;
}

}  // namespace tensorlane::lane
