// The ranks that a tensor belongs to and their hosts, as checkers count them: from the lists of a plan alone, nothing
// of the daemon's counting is used here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::simulator {

// All ranks of a job, or those of a process set. A rank's number and a host's place are what the set calls them, in the
// order of the job.
class TensorWorld {
 public:
  TensorWorld(const protocol::Plan& plan, const protocol::PlanTensor& tensor) {
    numbers_.resize(plan.rank_hosts.size());
    for (std::uint32_t rank = 0; rank < plan.rank_hosts.size(); ++rank) {
      if (tensor.world != nullptr && !std::ranges::binary_search(tensor.world->ranks(), rank)) continue;
      numbers_[rank] = size();
      ranks_.emplace_back(rank);
      hosts_.push_back(plan.rank_hosts[rank]);
    }
    std::ranges::sort(hosts_);
    hosts_.erase(std::unique(hosts_.begin(), hosts_.end()), hosts_.end());
    for (const Rank rank : ranks_) rank_hosts_.push_back(*place_of(plan.rank_hosts[rank.value]));
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::uint16_t hosts() const { return static_cast<std::uint16_t>(hosts_.size()); }
  // The places of the hosts, by number of the rank.
  const std::vector<HostIndex>& rank_hosts() const { return rank_hosts_; }
  Rank rank(std::uint32_t number) const { return ranks_[number]; }
  // Nothing where the rank is not in it.
  std::optional<std::uint32_t> number_of(Rank rank) const { return numbers_[rank.value]; }
  HostIndex host(HostIndex place) const { return hosts_[place.value]; }
  // Nothing where the host has no rank of it.
  std::optional<HostIndex> place_of(HostIndex host) const {
    const auto found = std::ranges::lower_bound(hosts_, host);
    if (found == hosts_.end() || *found != host) return std::nullopt;
    return HostIndex(static_cast<std::uint16_t>(found - hosts_.begin()));
  }
  // How many of its ranks the host has.
  std::size_t ranks_on(HostIndex host) const {
    const std::optional<HostIndex> place = place_of(host);
    return place ? static_cast<std::size_t>(std::ranges::count(rank_hosts_, *place)) : 0;
  }

 private:
  std::vector<std::optional<std::uint32_t>> numbers_;  // by rank of the job
  std::vector<Rank> ranks_;                            // by number
  std::vector<HostIndex> hosts_;                       // by place
  std::vector<HostIndex> rank_hosts_;                  // by number: the place
};

}  // namespace tensorlane::simulator
