// Which ranks are on which host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::protocol {

// The ranks of each host.
class RankPlaces {
 public:
  // `rank_hosts`: the host of every rank. Allocates.
  explicit RankPlaces(std::span<const HostIndex> rank_hosts)
      : hosts_(rank_hosts.begin(), rank_hosts.end()), index_(hosts_.size()), ranks_(hosts_.size()) {
    for (const HostIndex host : hosts_) first_.resize(std::max<std::size_t>(first_.size(), host.value + 2u));
    for (const HostIndex host : hosts_) ++first_[host.value + 1u];
    for (std::size_t h = 1; h < first_.size(); ++h) first_[h] += first_[h - 1];
    std::vector<std::uint32_t> next = first_;
    for (std::uint32_t rank = 0; rank < hosts_.size(); ++rank) {
      const std::uint32_t place = next[hosts_[rank].value]++;
      index_[rank] = place - first_[hosts_[rank].value];
      ranks_[place] = rank;
    }
  }

  std::uint32_t world_size() const { return static_cast<std::uint32_t>(hosts_.size()); }
  HostIndex host(std::uint32_t rank) const { return hosts_[rank]; }
  std::span<const HostIndex> rank_hosts() const { return hosts_; }
  // Its local index: the place among the ranks of its host, which are in order of their numbers.
  std::uint32_t index(std::uint32_t rank) const { return index_[rank]; }
  // In this order. The host has at least one.
  std::span<const std::uint32_t> ranks(HostIndex host) const {
    return std::span(ranks_).subspan(first_[host.value], first_[host.value + 1u] - first_[host.value]);
  }

 private:
  std::vector<HostIndex> hosts_;
  std::vector<std::uint32_t> index_, ranks_, first_;
};

}  // namespace tensorlane::protocol
