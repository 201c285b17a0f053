// How far a job has come, for those who look whether it stands still (law 21). Nothing here is on the way of a slice.
#include <algorithm>

#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {

void Job::rails_progress(std::size_t lane, const ports::LaneProgress& progress) {
  set_of(lane).progress = progress;
}

// A job whose rails have said nothing new on one of their lanes says nothing: whoever looks sees that it stands still.
void Job::tell_progress(Time now) {
  if (state_ != State::kRunning || now < next_progress_) return;
  if (std::ranges::any_of(sets_, [](const Set& set) { return set.progress.at <= set.told; })) return;
  next_progress_ = now + report_period(spec_);
  progress_.at = now;
  progress_.flows.clear();
  progress_.ports.clear();
  for (Set& set : sets_) {
    set.told = set.progress.at;
    progress_.at = std::min(progress_.at, set.progress.at);
    progress_.flows.insert(progress_.flows.end(), set.progress.flows.begin(), set.progress.flows.end());
    progress_.ports.resize(std::max(progress_.ports.size(), set.progress.ports.size()));
    for (std::size_t r = 0; r < set.progress.ports.size(); ++r) progress_.ports[r] += set.progress.ports[r];
  }
  look_at_ages(now);
  context_.listener->on_progress(id(), progress_);
}

void Job::raise_ages(std::array<Duration, kMaxDataClasses>* ages) const {
  for (std::size_t c = 0; c < ages->size(); ++c) (*ages)[c] = std::max((*ages)[c], ages_[c]);
}

}  // namespace tensorlane::host
