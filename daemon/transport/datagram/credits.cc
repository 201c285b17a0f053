#include "daemon/transport/datagram/credits.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::datagram {

Credits::Stream Credits::add(JobId job, Slot slot, CreditHolder& holder) {
  Stream stream = static_cast<Stream>(streams_.size());
  if (free_.empty()) {
    streams_.emplace_back();
  } else {
    stream = free_.back();
    free_.pop_back();
  }
  streams_[stream] = {.used = true, .job = job, .slot = slot, .holder = &holder, .credit = options_.unasked.value};
  std::vector<JobTurn>& jobs = jobs_[slot];
  auto found = std::ranges::find(jobs, job, &JobTurn::job);
  if (found == jobs.end()) found = jobs.insert(jobs.end(), {job, {}});
  found->peers.streams.push_back(stream);
  return stream;
}

void Credits::remove(Stream stream) {
  State& state = streams_[stream];
  TL_ASSERT(state.used);
  count(state, 0);
  std::vector<JobTurn>& jobs = jobs_[state.slot];
  const auto job = std::ranges::find(jobs, state.job, &JobTurn::job);
  std::erase(job->peers.streams, stream);
  job->peers.next = 0;
  if (job->peers.streams.empty()) {
    jobs.erase(job);
    next_job_[state.slot] = 0;
  }
  state.used = false;
  free_.push_back(stream);
}

void Credits::count(State& state, std::uint64_t asked) {
  outstanding_[state.slot] += asked - state.asked;
  state.asked = asked;
}

void Credits::wants(Stream stream, std::uint64_t end) {
  streams_[stream].wanted = std::max(streams_[stream].wanted, end);
}

void Credits::come(Time now, Stream stream, std::uint64_t bytes) {
  State& state = streams_[stream];
  if (bytes <= state.come) return;
  const std::uint64_t more = bytes - state.come;
  state.come = bytes;
  state.moved = now;
  const std::uint64_t ahead = state.credit - std::min(state.credit, state.come);
  // What it holds counts again.
  if (state.silent)
    count(state, ahead - std::min(ahead, options_.unasked.value));
  else
    count(state, state.asked - std::min(state.asked, more));
  state.silent = false;
}

// The next of a job's peers that wants more gets a quantum.
bool Credits::serve(Time now, Turn& turn) {
  for (std::size_t tried = 0; tried < turn.streams.size(); ++tried) {
    const Stream stream = turn.streams[turn.next % turn.streams.size()];
    turn.next = (turn.next + 1) % turn.streams.size();
    State& state = streams_[stream];
    if (state.silent || state.wanted <= state.credit) continue;
    const std::uint64_t given = std::min(state.wanted - state.credit, options_.quantum.value);
    if (state.asked == 0) state.moved = now;
    state.credit += given;
    count(state, state.asked + given);
    state.holder->credit_raised(state.slot);
    return true;
  }
  return false;
}

void Credits::give(Time now) {
  for (Stream stream = 0; stream < streams_.size(); ++stream) {
    State& state = streams_[stream];
    if (!state.used) continue;
    if (state.asked > 0 && now >= state.moved + options_.gives_up) {
      count(state, 0);
      state.silent = true;
    }
    // Of one that has sent everything the next message may begin unasked.
    const std::uint64_t least = state.come + options_.unasked.value;
    if (state.wanted <= state.come && state.credit < least) {
      state.credit = least;
      state.holder->credit_raised(state.slot);
    }
  }
  // Credit of less urgent classes is no reason to wait: theirs is overtaken on the way.
  std::uint64_t outstanding = 0;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    outstanding += outstanding_[slot];
    std::vector<JobTurn>& jobs = jobs_[slot];
    for (bool served = true; served && outstanding < options_.window.value;) {
      served = false;
      const std::uint64_t before = outstanding_[slot];
      for (std::size_t tried = 0; tried < jobs.size() && !served; ++tried) {
        JobTurn& job = jobs[next_job_[slot] % jobs.size()];
        next_job_[slot] = (next_job_[slot] + 1) % jobs.size();
        served = serve(now, job.peers);
      }
      outstanding += outstanding_[slot] - before;
    }
  }
}

std::optional<Time> Credits::deadline() const {
  std::optional<Time> first;
  for (const State& state : streams_) {
    if (!state.used || state.asked == 0) continue;
    const Time at = state.moved + options_.gives_up;
    if (!first || at < *first) first = at;
  }
  return first;
}

}  // namespace tensorlane::datagram
