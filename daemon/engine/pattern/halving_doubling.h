// Recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
// in MPICH", 2005; the HD of Caramel, section 2): in log2(N) steps of halved distance, every host gives its partner the
// shards whose owners are on the partner's side; the results come back in steps of doubled distance. Seen from one
// owner that is a tree: a host sends to the partner across the highest bit in which its index differs from the owner's.
//
// Groups of any size: the first P = 2^k hosts take the steps, host P + i joins through host i, which adds its numbers
// before the first step and passes results on after the last. A shard of host P + i goes through host i, too.
#pragma once

#include <algorithm>
#include <bit>

#include "daemon/engine/pattern/route.h"

namespace tensorlane::engine {

// How many hosts take the steps: the largest power of two that is no more than `hosts`.
inline std::uint16_t halving_doubling_core(std::uint16_t hosts) {
  return std::bit_floor(hosts);
}

// The core host whose tree carries the owner's shard.
inline std::uint16_t halving_doubling_root(std::uint16_t core, HostIndex owner) {
  return static_cast<std::uint16_t>(owner.value < core ? owner.value : owner.value - core);
}

inline bool halving_doubling_is_leaf(std::uint16_t hosts, HostIndex owner, HostIndex host) {
  if (host == owner) return false;
  const std::uint16_t core = halving_doubling_core(hosts);
  if (host.value >= core) return true;
  const auto distance =
      std::bit_floor(static_cast<std::uint16_t>(host.value ^ halving_doubling_root(core, owner)));  // of its only step
  const bool brings_another = host.value + core < hosts && host.value + core != owner.value;
  return distance == core / 2 && !brings_another;
}

// Host 0 is the busiest where hosts have joined: its own joined host sends it all that it has, and the shards of all
// that have joined take the steps once more than those of the others, by roots that differ from host 0 in low bits.
inline double halving_doubling_most_received(std::uint16_t hosts, std::uint16_t shards) {
  const std::uint16_t core = halving_doubling_core(hosts);
  const unsigned joined = hosts - core;
  if (joined == 0) return halved_steps(core, shards);
  std::uint32_t again = hosts - 1u;
  for (unsigned root = 0; root < joined; ++root)
    again += static_cast<std::uint32_t>(std::bit_width(core - 1u) - std::bit_width(root));
  return halved_steps(core, std::min(core, shards)) + static_cast<double>(again) * shards / hosts;
}

inline Route halving_doubling_route(std::uint16_t hosts, HostIndex owner, HostIndex me) {
  const std::uint16_t core = halving_doubling_core(hosts);
  const std::uint16_t root = halving_doubling_root(core, owner);
  const auto index = [](unsigned host) { return HostIndex(static_cast<std::uint16_t>(host)); };
  Route r;
  r.sum_order = {me};
  if (me.value >= core) {
    const HostIndex partner = index(me.value - core);
    if (me == owner) {
      r.sum_order.push_back(partner);
      r.result_to = {partner};
    } else {
      r.contribution_to = r.result_from = partner;
    }
    return r;
  }
  const HostIndex joined = index(me.value + core);
  const bool joins = joined.value < hosts;
  if (joins && joined != owner) r.sum_order.push_back(joined);
  const auto mine = std::bit_floor(static_cast<std::uint16_t>(me.value ^ root));  // 0: I am the root
  for (unsigned distance = core / 2u; distance > mine; distance /= 2) r.sum_order.push_back(index(me.value ^ distance));
  for (unsigned distance = mine == 0 ? 1u : mine * 2u; distance < core; distance *= 2)
    r.result_to.push_back(index(me.value ^ distance));
  if (joins && joined != owner) r.result_to.push_back(joined);
  if (mine != 0) {
    r.contribution_to = r.result_from = index(me.value ^ mine);
  } else if (me != owner) {
    r.contribution_to = r.result_from = owner;  // which joined through me
  }
  return r;
}

}  // namespace tensorlane::engine
