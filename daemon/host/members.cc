#include "daemon/host/members.h"

#include <algorithm>

namespace tensorlane::host {

Members::Members(const ports::JobSpec& spec, protocol::SharedWorld world)
    : world_(std::move(world)), self_(spec.credentials.self), hosts_(static_cast<std::uint16_t>(spec.hosts.size())) {
  const std::vector<Rank>& here = spec.hosts[spec.credentials.self.value].ranks;
  place_.assign(here.size(), kNone);
  if (world_ != nullptr) {
    hosts_ = world_->hosts();
    self_ = world_->place_of(spec.credentials.self).value_or(HostIndex(0));
  } else {
    std::vector<HostIndex> rank_hosts(spec.world_size);
    for (std::uint16_t h = 0; h < spec.hosts.size(); ++h) {
      for (const Rank rank : spec.hosts[h].ranks) rank_hosts[rank.value] = HostIndex(h);
    }
    places_.emplace(rank_hosts);
  }
  for (std::uint32_t local = 0; local < here.size(); ++local) {
    const std::optional<std::uint32_t> number =
        world_ == nullptr ? here[local].value : world_->rank_of(here[local].value);
    if (!number) continue;
    place_[local] = static_cast<std::uint32_t>(locals_.size());
    locals_.push_back(local);
    numbers_.push_back(*number);
  }
}

std::optional<std::uint32_t> Members::place_of_number(std::uint32_t number) const {
  const auto found = std::ranges::find(numbers_, number);
  if (found == numbers_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - numbers_.begin());
}

}  // namespace tensorlane::host
