// How much of a class may be on its way to one peer: as the network bears it. Pure.
//
// The receiver's credits keep its own port from being overrun (credits.h). What they do not know of is a port in the
// middle of the network: its marks of congestion make the window smaller, as DCTCP does (RFC 8257, section 3.3), and so
// does a share of lost packets that stays high for some round trips. A few lost packets do not: credits already hold
// back what would fill queues, and cables lose some. A loss that turns out to be none is taken back (RFC 4015).
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::datagram {

class Window {
 public:
  // Begins with the most there may ever be.
  Window(Bytes most, std::size_t packet_bytes)
      : most_(static_cast<double>(most.value)), packet_(static_cast<double>(packet_bytes)), size_(most_) {}

  std::uint64_t size() const { return static_cast<std::uint64_t>(size_); }

  // Packets that arrived since the last call, with or without a mark, and those that are lost. `spurious` of those that
  // arrived had counted as lost.
  void note(Time now, std::uint64_t arrived, std::uint64_t marked, std::uint64_t lost, std::uint64_t spurious,
            Duration round_trip) {
    arrived_ += static_cast<double>(arrived);
    marked_ += static_cast<double>(std::min(marked, arrived));
    lost_ += static_cast<double>(lost);
    if (spurious > 0) take_back(static_cast<double>(spurious));
    // A packet more in each round trip.
    size_ = std::min(size_ + packet_ * packet_ * static_cast<double>(arrived) / size_, most_);
    if (now < round_ends_ || arrived_ + lost_ == 0) return;
    constexpr double kGain = 1.0 / 16, kLossGain = 1.0 / 4;
    alpha_ += kGain * (marked_ / std::max(arrived_, 1.0) - alpha_);
    if (marked_ > 0) size_ *= 1 - alpha_ / 2;
    losses_ += kLossGain * (lost_ / (arrived_ + lost_) - losses_);
    if (losses_ > kManyLost && lost_ > 1) {
      before_ = size_;
      before_lost_ = lost_;
      size_ *= kAfterLosses;
    }
    size_ = std::max(size_, 2 * packet_);
    arrived_ = marked_ = lost_ = 0;
    round_ends_ = now + round_trip;
  }

 private:
  static constexpr double kManyLost = 0.1, kAfterLosses = 0.7;

  // Those of the last round trips, first of this one.
  void take_back(double spurious) {
    const double here = std::min(lost_, spurious);
    lost_ -= here;
    spurious -= here;
    if (spurious == 0) return;
    losses_ = 0;
    before_lost_ -= spurious;
    if (before_ == 0 || before_lost_ > 1) return;
    size_ = std::max(size_, before_);
    before_ = 0;
  }

  double most_, packet_, size_;
  double alpha_ = 1;                            // RFC 8257: the first marks count in full
  double arrived_ = 0, marked_ = 0, lost_ = 0;  // in this round trip
  double losses_ = 0;                           // share of those that are sent, over some round trips
  double before_ = 0, before_lost_ = 0;         // the size before the last cut for losses, and for how many it was
  Time round_ends_;
};

}  // namespace tensorlane::datagram
