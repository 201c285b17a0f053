#include "daemon/transport/datagram/recovery.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "common/base/assert.h"

namespace tensorlane::datagram {

void RoundTrips::add(Duration sample, Duration peer_delay) {
  latest_ = std::max(sample, nanoseconds(1));
  if (smoothed_.value == 0) {
    least_ = smoothed_ = latest_;
    variation_ = Duration(latest_.value / 2);
    return;
  }
  least_ = std::min(least_, latest_);
  // What the peer says of its delay is believed as far as it leaves the least round trip.
  Duration adjusted = latest_;
  if (latest_.value >= least_.value + peer_delay.value) adjusted = latest_ - peer_delay;
  variation_ = Duration((3 * variation_.value + std::abs(smoothed_.value - adjusted.value)) / 4);
  smoothed_ = Duration((7 * smoothed_.value + adjusted.value) / 8);
}

Duration RoundTrips::timeout() const {
  if (!known()) return kFirst;
  return smoothed_ + std::max(variation_ * 4, kGranularity) + kGranularity;
}

Duration RoundTrips::patience(unsigned quarters) const {
  if (!known()) return kFirst;
  const Duration trip = std::max(smoothed_, latest_);
  const Duration window = std::min(Duration(least_.value / 4 * quarters), smoothed_);
  return std::max(trip + std::max(window, Duration(trip.value / 8)), kGranularity);
}

void Recovery::Outcome::clear() {
  acked.clear();
  lost.clear();
  packets_lost = packets_acked = spurious = 0;
  probe.reset();
}

Recovery::Recovery(std::size_t capacity) : packets_(std::bit_ceil(capacity)) {
  TL_ASSERT(capacity > 0);
}

void Recovery::sent(Time now, Range piece) {
  TL_ASSERT(!full());
  if (next_ - first_ == packets_.size()) ++first_;  // of that one nobody can hear any more
  packet(next_) = {now, piece, State::kOnItsWay};
  ++next_;
  bytes_in_flight_ += piece.length();
  last_moved_ = now;
}

void Recovery::take(Packet& one, State state, std::vector<Range>* into) {
  if (one.state == State::kOnItsWay) bytes_in_flight_ -= one.piece.length();
  one.state = state;
  if (one.piece.length() == 0) return;
  if (!into->empty() && into->back().end == one.piece.begin)
    into->back().end = one.piece.end;
  else
    into->push_back(one.piece);
}

void Recovery::skip_done() {
  while (oldest_ < next_ && packet(oldest_).state != State::kOnItsWay) ++oldest_;
}

// At most once in a round trip: what was overtaken at the same time says the same.
void Recovery::note_spurious(Time now, const RoundTrips& round_trips) {
  reorders_ = true;
  fewer_at_ = now + round_trips.smoothed() * kFewerAfter;
  if (now < grown_ + round_trips.smoothed()) return;
  grown_ = now;
  quarters_ = std::min(quarters_ + 1, kMostQuarters);
}

bool Recovery::acknowledge(Time now, std::span<const Range> come, Duration peer_delay, RoundTrips* round_trips,
                           Outcome* outcome) {
  outcome->clear();
  const std::uint64_t largest = come.front().end - 1;
  if (largest >= next_) return false;
  if (!largest_ || largest > *largest_) largest_ = largest;
  if (largest >= oldest_ && packet(largest).state == State::kOnItsWay)
    round_trips->add(now - packet(largest).at, peer_delay);
  for (const Range& range : come) {
    for (std::uint64_t number = std::max({range.begin, first_, settled_}); number < range.end; ++number) {
      Packet& one = packet(number);
      if (one.state == State::kDone) continue;
      if (one.state == State::kLost) {
        // It has made a round trip, too; without those that are late the mean would be of the quick ones alone.
        if (outcome->spurious++ == 0) round_trips->add(now - one.at, {});
        note_spurious(now, *round_trips);
      }
      ++outcome->packets_acked;
      take(one, State::kDone, &outcome->acked);
      timeouts_ = 0;
      last_moved_ = now;
    }
  }
  settled_ = std::max(settled_, first_);
  while (settled_ < next_ && packet(settled_).state == State::kDone) ++settled_;
  if (quarters_ > 1 && now >= fewer_at_) {
    --quarters_;
    fewer_at_ = now + round_trips->smoothed() * kFewerAfter;
  }
  find_lost(now, *round_trips, outcome);
  return true;
}

void Recovery::lose(std::uint64_t number, Outcome* outcome) {
  take(packet(number), State::kLost, &outcome->lost);
  ++outcome->packets_lost;
}

// The oldest was sent first, so where it is not lost no other one is.
void Recovery::find_lost(Time now, const RoundTrips& round_trips, Outcome* outcome) {
  const Duration patience = round_trips.patience(quarters_);
  for (skip_done(); largest_ && oldest_ < std::min(next_, *largest_); skip_done()) {
    const bool overtaken = !reorders_ && *largest_ - oldest_ >= kOvertaken;
    if (!overtaken && now < packet(oldest_).at + patience) break;
    lose(oldest_, outcome);
  }
}

std::optional<Time> Recovery::deadline(const RoundTrips& round_trips) const {
  if (idle()) return std::nullopt;
  if (largest_ && oldest_ < *largest_) return packet(oldest_).at + round_trips.patience(quarters_);
  return last_moved_ + round_trips.timeout() * (std::int64_t{1} << std::min(timeouts_, kMostBackoff));
}

void Recovery::on_time(Time now, const RoundTrips& round_trips, Outcome* outcome) {
  outcome->clear();
  const std::optional<Time> due = deadline(round_trips);
  if (!due || now < *due) return;
  find_lost(now, round_trips, outcome);
  if (outcome->packets_lost > 0) return;
  // One without a piece would bring nothing forward.
  std::uint64_t probed = oldest_;
  while (probed < next_ && (packet(probed).state != State::kOnItsWay || packet(probed).piece.length() == 0)) ++probed;
  outcome->probe = packet(probed < next_ ? probed : oldest_).piece;
  if (full()) lose(oldest_, outcome);
  skip_done();
  ++timeouts_;
  last_moved_ = now;
}

}  // namespace tensorlane::datagram
