// Some ranks of a job, whose operations nobody else takes part in: what frameworks call a process set, a group or a
// communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/assert.h"
#include "common/base/units.h"
#include "common/protocol/rank_places.h"

namespace tensorlane::protocol {

// The ranks of a set and their hosts. Inside the set both are counted from 0, in the order of their numbers in the job:
// a host's number there is its place. Does not change; tensors share it.
class World {
 public:
  // `ranks`: of the job, ascending, at least one; `hosts`: of the job, that of each of them. Allocates.
  World(std::vector<std::uint32_t> ranks, std::span<const HostIndex> hosts)
      : ranks_(std::move(ranks)), hosts_(distinct(hosts)), places_(places_of(hosts)) {
    TL_ASSERT(!ranks_.empty() && ranks_.size() == hosts.size());
  }

  std::uint32_t size() const { return places_.world_size(); }
  std::uint16_t hosts() const { return static_cast<std::uint16_t>(hosts_.size()); }
  // Of the job, in the order of their numbers in the set.
  const std::vector<std::uint32_t>& ranks() const { return ranks_; }
  // What the job calls the host at a place.
  HostIndex host(HostIndex place) const { return hosts_[place.value]; }
  // Nothing where the host has no rank of the set.
  std::optional<HostIndex> place_of(HostIndex host) const {
    const auto found = std::ranges::lower_bound(hosts_, host);
    if (found == hosts_.end() || *found != host) return std::nullopt;
    return HostIndex(static_cast<std::uint16_t>(found - hosts_.begin()));
  }
  // The number in the set of a rank of the job; nothing where it is not in it.
  std::optional<std::uint32_t> rank_of(std::uint32_t rank) const {
    const auto found = std::ranges::lower_bound(ranks_, rank);
    if (found == ranks_.end() || *found != rank) return std::nullopt;
    return static_cast<std::uint32_t>(found - ranks_.begin());
  }
  // By numbers in the set.
  const RankPlaces& places() const { return places_; }

  bool operator==(const World& o) const { return ranks_ == o.ranks_ && hosts_ == o.hosts_; }

 private:
  static std::vector<HostIndex> distinct(std::span<const HostIndex> hosts) {
    std::vector<HostIndex> all(hosts.begin(), hosts.end());
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  RankPlaces places_of(std::span<const HostIndex> hosts) const {
    std::vector<HostIndex> places;
    places.reserve(hosts.size());
    for (const HostIndex host : hosts) places.push_back(*place_of(host));
    return RankPlaces(places);
  }

  std::vector<std::uint32_t> ranks_;
  std::vector<HostIndex> hosts_;  // ascending
  RankPlaces places_;
};

// Of a tensor: none means all ranks of the job.
using SharedWorld = std::shared_ptr<const World>;

inline bool is_same(const SharedWorld& a, const SharedWorld& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

}  // namespace tensorlane::protocol
