#include "daemon/transport/datagram/recovery.h"

#include <algorithm>
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

Duration RoundTrips::patience() const {
  if (!known()) return kFirst;
  return std::max(Duration(std::max(smoothed_, latest_).value * 9 / 8), kGranularity);
}

void Recovery::Outcome::clear() {
  acked.clear();
  lost.clear();
  packets_lost = packets_acked = 0;
  bytes_acked = 0;
  probe.reset();
}

Recovery::Recovery(std::size_t capacity) : packets_(capacity) {
  TL_ASSERT(capacity > 0);
}

void Recovery::sent(Time now, Range piece) {
  TL_ASSERT(!full());
  packet(next_) = {now, piece, State::kOnItsWay};
  ++next_;
  ++used_;
  bytes_in_flight_ += piece.length();
  last_moved_ = now;
}

void Recovery::take(std::uint64_t number, std::vector<Range>* into) {
  Packet& one = packet(number);
  one.state = State::kDone;
  bytes_in_flight_ -= one.piece.length();
  if (one.piece.length() == 0) return;
  if (!into->empty() && into->back().end == one.piece.begin)
    into->back().end = one.piece.end;
  else
    into->push_back(one.piece);
}

void Recovery::retire() {
  while (used_ > 0 && packet(first_).state != State::kOnItsWay) {
    ++first_;
    --used_;
  }
}

bool Recovery::acknowledge(Time now, std::span<const Range> come, Duration peer_delay, RoundTrips* round_trips,
                           Outcome* outcome) {
  outcome->clear();
  const std::uint64_t largest = come.front().end - 1;
  if (largest >= next_) return false;
  if (!largest_ || largest > *largest_) largest_ = largest;
  const bool times = largest >= first_ && packet(largest).state == State::kOnItsWay;
  if (times) round_trips->add(now - packet(largest).at, peer_delay);
  for (const Range& range : come) {
    const Range known{std::max(range.begin, first_), range.end};
    for (std::uint64_t number = known.begin; number < known.end; ++number) {
      if (packet(number).state != State::kOnItsWay) continue;
      outcome->bytes_acked += packet(number).piece.length();
      ++outcome->packets_acked;
      take(number, &outcome->acked);
      timeouts_ = 0;
      last_moved_ = now;
    }
  }
  find_lost(now, *round_trips, outcome);
  retire();
  return true;
}

void Recovery::forget() {
  for (; used_ > 0; --used_) packet(first_++).state = State::kDone;
  bytes_in_flight_ = 0;
  timeouts_ = 0;
}

void Recovery::lose(std::uint64_t number, Outcome* outcome) {
  take(number, &outcome->lost);
  ++outcome->packets_lost;
}

void Recovery::find_lost(Time now, const RoundTrips& round_trips, Outcome* outcome) {
  if (!largest_) return;
  for (std::uint64_t number = first_; number < std::min(next_, *largest_); ++number) {
    const Packet& one = packet(number);
    if (one.state != State::kOnItsWay) continue;
    const bool late = now >= one.at + round_trips.patience();
    if (*largest_ - number >= kOvertaken || late) lose(number, outcome);
  }
}

std::optional<Time> Recovery::deadline(const RoundTrips& round_trips) const {
  if (used_ == 0) return std::nullopt;
  for (std::uint64_t number = first_; largest_ && number < std::min(next_, *largest_); ++number)
    if (packet(number).state == State::kOnItsWay) return packet(number).at + round_trips.patience();
  for (std::uint64_t number = first_; number < next_; ++number)
    if (packet(number).state == State::kOnItsWay)
      return last_moved_ + round_trips.timeout() * (std::int64_t{1} << std::min(timeouts_, kMostBackoff));
  return std::nullopt;
}

void Recovery::on_time(Time now, const RoundTrips& round_trips, Outcome* outcome) {
  outcome->clear();
  const std::optional<Time> due = deadline(round_trips);
  if (!due || now < *due) return;
  find_lost(now, round_trips, outcome);
  if (outcome->packets_lost == 0) {
    // first_ is on its way, or retire() would have passed it.
    // One without a piece would bring nothing forward.
    std::uint64_t probed = first_;
    while (probed < next_ && (packet(probed).state != State::kOnItsWay || packet(probed).piece.length() == 0)) ++probed;
    outcome->probe = packet(probed < next_ ? probed : first_).piece;
    if (full()) lose(first_, outcome);
    ++timeouts_;
    last_moved_ = now;
  }
  retire();
}

}  // namespace tensorlane::datagram
