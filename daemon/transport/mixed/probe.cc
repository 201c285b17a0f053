#include "daemon/transport/mixed/probe.h"

#include <algorithm>

namespace tensorlane::mixed {
namespace {

// Pings take at most this share of the time.
constexpr std::int64_t kPingShare = 4;
// A round trip that varies may be as long as the round: no bandwidth follows from a difference that small.
constexpr std::int64_t kLeastTransferShare = 16;

}  // namespace

std::vector<Probe::Message> Probe::begin(Time now) {
  began_ = now;
  return ping(now);
}

std::vector<Probe::Message> Probe::answered(std::uint64_t number, Time now) {
  if (done_ || number != awaited_) return {};
  const Duration took = std::max(now - sent_, nanoseconds(1));
  const Duration spent = now - began_;
  if (round_ == Bytes()) {
    round_trip_ = pings_ == 1 ? took : std::min(round_trip_, took);
    const bool time_left = spent + round_trip_ <= Duration(kProbeTime.value / kPingShare);
    return pings_ < kPings && time_left ? ping(now) : round(kFirstRound, now);
  }
  note(took);
  const Bytes next = std::min(round_ + round_, kLastRound);
  const Duration transfer = std::max(took - round_trip_, Duration());
  const auto scale = static_cast<std::int64_t>(next.value / round_.value);
  if (moved_ + next <= kProbeBytes && spent + round_trip_ + transfer * scale <= kProbeTime) return round(next, now);
  done_ = true;
  return {};
}

std::vector<Probe::Message> Probe::ping(Time now) {
  ++pings_;
  sent_ = now;
  return {{static_cast<std::uint32_t>(kPing.value), ++awaited_, true}};
}

std::vector<Probe::Message> Probe::round(Bytes size, Time now) {
  round_ = size;
  moved_ += size;
  sent_ = now;
  std::vector<Message> messages;
  for (Bytes left = size; left > Bytes();) {
    const Bytes part = std::min(left, kMaxOperation);
    left -= part;
    messages.push_back({static_cast<std::uint32_t>(part.value), ++awaited_, left == Bytes()});
  }
  return messages;
}

// Half the round trip is the latency; a round costs both ways, too.
void Probe::note(Duration took) {
  const Duration transfer = std::max({took - round_trip_, Duration(took.value / kLeastTransferShare), nanoseconds(1)});
  const BitsPerSecond bandwidth(std::max(
      std::uint64_t{1}, static_cast<std::uint64_t>(static_cast<double>(round_.value) * 8 / to_seconds(transfer))));
  if (round_ == largest_ && bandwidth <= figures_->bandwidth) return;
  largest_ = round_;
  figures_ = {Duration(round_trip_.value / 2), bandwidth};
}

}  // namespace tensorlane::mixed
