#include "monitor/timeline/clock_fit.h"

#include <algorithm>
#include <limits>

namespace tensorlane::timeline {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
// Two spans of the same end, of a timeline and a dump of one host.
constexpr std::int64_t kSame = 1'000'000;
constexpr std::int64_t kLeastSlack = 1000;

// Shortest ways from `from` to all; false where a way around is shorter than nothing. Edges: (a, b) -> length;
// backward: against them.
template <typename Edges>
bool shortest(const Edges& edges, std::size_t clocks, std::size_t from, bool backward, std::int64_t slack,
              std::vector<std::int64_t>* ways) {
  ways->assign(clocks, kUnknown);
  (*ways)[from] = 0;
  for (std::size_t round = 0; round <= clocks; ++round) {
    bool changed = false;
    for (const auto& [pair, length] : edges) {
      const std::size_t a = backward ? pair.second : pair.first, b = backward ? pair.first : pair.second;
      if ((*ways)[a] == kUnknown) continue;
      const std::int64_t way = (*ways)[a] + length + slack;
      if (way >= (*ways)[b]) continue;
      (*ways)[b] = way;
      changed = true;
    }
    if (!changed) return true;
  }
  return false;
}

}  // namespace

void ClockFit::add(const OperationKey& key, bool sent, std::size_t clock, std::int64_t time) {
  if ((key.second & mask_) != 0) return;
  End& end = kept_[key].ends[sent ? 1 : 0];
  const bool same = end.clock == clock && std::max(end.time, time) - std::min(end.time, time) < kSame;
  if (end.known) {
    end.doubtful = end.doubtful || !same;
    return;
  }
  end = {true, false, static_cast<std::uint32_t>(clock), time};
  while (kept_.size() > kMostKept) thin();
}

void ClockFit::thin() {
  mask_ = mask_ * 2 + 1;
  std::erase_if(kept_, [this](const auto& one) { return (one.first.second & mask_) != 0; });
}

ClockFit::Bounds ClockFit::bounds(std::vector<Offset>* offsets) const {
  Bounds least;
  for (const auto& [key, operation] : kept_) {
    const auto& [received, sent] = operation.ends;
    if (!received.known || !sent.known || received.doubtful || sent.doubtful || received.clock == sent.clock) continue;
    const std::int64_t difference = received.time - sent.time;
    const auto [bound, fresh] = least.try_emplace({sent.clock, received.clock}, difference);
    if (!fresh) bound->second = std::min(bound->second, difference);
    ++(*offsets)[sent.clock].operations;
    ++(*offsets)[received.clock].operations;
  }
  return least;
}

std::vector<Offset> ClockFit::fit(std::size_t clocks) {
  std::vector<Offset> offsets(clocks);
  const Bounds least = bounds(&offsets);
  moved_ = 0;
  std::vector<std::int64_t> ahead, behind;
  for (std::size_t reference = 0; reference < clocks; ++reference) {
    if (offsets[reference].matched) continue;
    std::int64_t slack = 0;
    while (!shortest(least, clocks, reference, false, slack, &ahead) ||
           !shortest(least, clocks, reference, true, slack, &behind))
      slack = std::max(slack * 2, kLeastSlack);
    moved_ = std::max(moved_, slack);
    for (std::size_t clock = 0; clock < clocks; ++clock) {
      Offset& one = offsets[clock];
      if (one.matched || clock == reference || ahead[clock] == kUnknown || behind[clock] == kUnknown) continue;
      one.matched = true;
      one.reference = reference;
      one.offset = (ahead[clock] - behind[clock]) / 2;
      one.error = (ahead[clock] + behind[clock] + 1) / 2;
      offsets[reference].matched = true;
    }
    offsets[reference].reference = reference;
  }
  return offsets;
}

}  // namespace tensorlane::timeline
