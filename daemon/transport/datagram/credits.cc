#include "daemon/transport/datagram/credits.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::datagram {

std::uint32_t Credits::turn_of(JobId job, Slot slot) {
  const auto is_it = [&](const Turn& turn) { return turn.streams > 0 && turn.job == job && turn.slot == slot; };
  auto found = std::ranges::find_if(turns_, is_it);
  if (found == turns_.end()) found = std::ranges::find(turns_, std::size_t{0}, &Turn::streams);
  if (found == turns_.end()) found = turns_.emplace(turns_.end());
  found->job = job;
  found->slot = slot;
  return static_cast<std::uint32_t>(found - turns_.begin());
}

Credits::Stream Credits::add(JobId job, Slot slot, CreditHolder& holder) {
  Stream stream = static_cast<Stream>(streams_.size());
  if (free_.empty()) {
    streams_.emplace_back();
    touched_.reserve(streams_.size());
  } else {
    stream = free_.back();
    free_.pop_back();
  }
  const std::uint32_t turn = turn_of(job, slot);
  ++turns_[turn].streams;
  const bool touched = streams_[stream].touched;  // it may be in the list still
  streams_[stream] = {.used = true,
                      .slot = slot,
                      .holder = &holder,
                      .turn = turn,
                      .credit = options_.unasked.value,
                      .touched = touched};
  return stream;
}

void Credits::remove(Stream stream) {
  State& state = streams_[stream];
  TL_ASSERT(state.used);
  count(stream, 0);
  Turn& turn = turns_[state.turn];
  --turn.streams;
  turn.waiting.erase(stream);
  // Others of its job and class may have nothing to wait for.
  if (turn.queued && turn.waiting.empty()) {
    active_[turn.slot].erase(state.turn);
    turn.queued = false;
  }
  state.used = state.queued = false;
  free_.push_back(stream);
}

void Credits::link(Stream stream) {
  State& state = streams_[stream];
  state.before = newest_;
  state.behind = kNone;
  (newest_ == kNone ? oldest_ : streams_[newest_].behind) = stream;
  newest_ = stream;
}

void Credits::unlink(Stream stream) {
  State& state = streams_[stream];
  (state.before == kNone ? oldest_ : streams_[state.before].behind) = state.behind;
  (state.behind == kNone ? newest_ : streams_[state.behind].before) = state.before;
}

// The list is in the order of `moved`: who moves, or begins to have something on its way, goes to its end.
void Credits::count(Stream stream, std::uint64_t asked) {
  State& state = streams_[stream];
  outstanding_[state.slot] += asked - state.asked;
  if (state.asked > 0) unlink(stream);
  state.asked = asked;
  if (asked > 0) link(stream);
}

void Credits::queue(Stream stream) {
  State& state = streams_[stream];
  if (state.queued || state.silent || state.wanted <= state.credit) return;
  state.queued = true;
  Turn& turn = turns_[state.turn];
  turn.waiting.push_back(stream);
  if (turn.queued) return;
  turn.queued = true;
  active_[state.slot].push_back(state.turn);
}

void Credits::wants(Stream stream, std::uint64_t end) {
  State& state = streams_[stream];
  if (end <= state.wanted) return;
  state.wanted = end;
  queue(stream);
}

void Credits::come(Time now, Stream stream, std::uint64_t bytes) {
  State& state = streams_[stream];
  if (bytes <= state.come) return;
  const std::uint64_t more = bytes - state.come;
  state.come = bytes;
  state.since += more;
  if (!state.touched) touched_.push_back(stream);
  state.touched = true;
  // Who sends a little now and then would otherwise hold the window for as long as it likes.
  const bool moves = state.since >= options_.quantum.value || bytes >= std::min(state.wanted, state.credit);
  if (!moves) {
    // Its place in the list stays.
    const std::uint64_t counted = std::min(state.asked, more);
    outstanding_[state.slot] -= counted;
    state.asked -= counted;
    if (counted > 0 && state.asked == 0) unlink(stream);
    return;
  }
  state.moved = now;
  state.since = 0;
  const std::uint64_t ahead = state.credit - std::min(state.credit, state.come);
  // What it holds counts again.
  if (state.silent)
    count(stream, ahead - std::min(ahead, options_.unasked.value));
  else
    count(stream, state.asked - std::min(state.asked, more));
  state.silent = false;
  queue(stream);
}

// The next of the next job's peers that wants more gets a quantum.
void Credits::serve(Time now, Slot slot) {
  const std::uint32_t number = active_[slot].front();
  active_[slot].pop_front();
  Turn& turn = turns_[number];
  const Stream stream = turn.waiting.front();
  turn.waiting.pop_front();
  State& state = streams_[stream];
  state.queued = false;
  if (!state.silent && state.wanted > state.credit) {
    const std::uint64_t given = std::min(state.wanted - state.credit, options_.quantum.value);
    state.credit += given;
    if (state.asked == 0) {
      state.moved = now;
      count(stream, given);
    } else {
      outstanding_[slot] += given;
      state.asked += given;
    }
    state.holder->credit_raised();
    if (!state.queued && state.wanted > state.credit) {
      state.queued = true;
      turn.waiting.push_back(stream);
    }
  }
  turn.queued = !turn.waiting.empty();
  if (turn.queued) active_[slot].push_back(number);
}

void Credits::give(Time now) {
  while (oldest_ != kNone && now >= streams_[oldest_].moved + options_.gives_up) {
    streams_[oldest_].silent = true;
    streams_[oldest_].since = 0;
    count(oldest_, 0);
  }
  // Of one that has sent everything the next message may begin unasked.
  for (const Stream stream : touched_) {
    State& state = streams_[stream];
    state.touched = false;
    const std::uint64_t least = state.come + options_.unasked.value;
    if (!state.used || state.wanted > state.come || state.credit >= least) continue;
    state.credit = least;
    state.holder->credit_raised();
  }
  touched_.clear();
  // Credit of less urgent classes is no reason to wait: theirs is overtaken on the way.
  std::uint64_t outstanding = 0;
  for (Slot slot = 0; slot < kSlots; ++slot) {
    outstanding += outstanding_[slot];
    while (outstanding < options_.window.value && !active_[slot].empty()) {
      const std::uint64_t before = outstanding_[slot];
      serve(now, slot);
      outstanding += outstanding_[slot] - before;
    }
  }
}

std::optional<Time> Credits::deadline() const {
  if (oldest_ == kNone) return std::nullopt;
  return streams_[oldest_].moved + options_.gives_up;
}

}  // namespace tensorlane::datagram
