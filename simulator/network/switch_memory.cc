#include "simulator/network/switch_memory.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {
namespace {
constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();
}

SwitchMemory::SwitchMemory(const Topology& topology, const std::optional<SharedBuffer>& buffer,
                           const std::optional<PauseThresholds>& pauses)
    : buffer_(buffer),
      pauses_(pauses),
      held_(topology.cables.size() * 2 * kLevels),
      switches_(topology.nodes - topology.hosts) {
  for (const Cable& cable : topology.cables) {
    for (const NodeIndex to : {cable.b, cable.a}) switch_of_.push_back(to < topology.hosts ? ~0u : to - topology.hosts);
  }
}

std::uint64_t SwitchMemory::free(const Switch& s) const {
  return buffer_ ? buffer_->size.value - s.used : kEndless;
}

double SwitchMemory::threshold(const Switch& s) const {
  return buffer_ ? buffer_->alpha * static_cast<double>(free(s)) : static_cast<double>(kEndless);
}

void SwitchMemory::keep(Switch& s, Held& h, std::uint64_t bytes) {
  h.shared += bytes;
  s.used += bytes;
  peak_ = std::max(peak_, s.used);
}

SwitchMemory::Verdict SwitchMemory::take(std::uint32_t ingress, std::size_t level, std::uint64_t bytes,
                                         std::uint64_t queued) {
  Switch& s = behind(ingress);
  Held& h = held(ingress, level);
  if (!lossless(level)) {
    if (static_cast<double>(queued) >= threshold(s) || bytes > free(s)) return Verdict::kRefused;
    keep(s, h, bytes);
    return Verdict::kKept;
  }
  if (buffer_ && (h.paused || bytes > free(s))) {
    if (h.headroom + bytes > buffer_->headroom.value) return Verdict::kRefused;
    h.headroom += bytes;
    headroom_ = std::max(headroom_, h.headroom);
  } else {
    keep(s, h, bytes);
    const double most = std::min(threshold(s), static_cast<double>(pauses_->pause.value));
    if (static_cast<double>(h.shared) <= most) return Verdict::kKept;
  }
  if (h.paused) return Verdict::kKept;
  h.paused = true;
  s.paused.push_back({ingress, static_cast<std::uint32_t>(level)});
  return Verdict::kKeptAndPause;
}

const std::vector<SwitchMemory::Resumed>& SwitchMemory::give(std::uint32_t ingress, std::size_t level,
                                                             std::uint64_t bytes) {
  Switch& s = behind(ingress);
  Held& h = held(ingress, level);
  const std::uint64_t of_headroom = std::min(bytes, h.headroom), shared = bytes - of_headroom;
  TL_ASSERT(h.shared >= shared && s.used >= shared);
  h.headroom -= of_headroom;
  h.shared -= shared;
  s.used -= shared;
  resumed_.clear();
  if (s.paused.empty()) return resumed_;
  // What is free now is free for every link that is stopped.
  const double most = std::min(threshold(s), static_cast<double>(pauses_->pause.value));
  const double below = std::max(0.0, most - static_cast<double>((pauses_->pause - pauses_->resume).value));
  std::erase_if(s.paused, [&](const Resumed& one) {
    Held& other = held(one.ingress, one.level);
    if (static_cast<double>(other.shared + other.headroom) > below) return false;
    other.paused = false;
    resumed_.push_back(one);
    return true;
  });
  return resumed_;
}

}  // namespace tensorlane::simulator
