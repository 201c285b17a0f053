// Which host owns which part of a tensor: a function of (tensor, offset, world) and nothing else (law 1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// In elements of the tensor. Never empty.
struct Shard {
  std::uint64_t offset = 0;
  std::uint64_t elements = 0;
  HostIndex owner;
  bool operator==(const Shard&) const = default;
};

// Shards start at multiples of this many elements, and their sizes differ by at most as much.
inline constexpr std::uint64_t kShardAlignment = 16;
// A tensor whose contribution is at most this long is one shard: cutting it saves no time and costs messages. Not a
// setting: it shapes sums.
inline constexpr Bytes kWholeTensor = kib(32);
// No longer tensor is cut into contributions shorter than this, however many hosts there are: below it a message costs
// more than its bytes. Where a host hears from a few others only (halving-doubling, tree), kWholeTensor.
inline constexpr Bytes kSmallestShard = kib(4);

// The type in which a host that adds nobody else's data sends its contribution.
constexpr Dtype contribution_dtype(const protocol::PlanTensor& tensor) {
  return tensor.fp32_contributions && dtype_size(tensor.dtype) == 2 ? Dtype::kFloat32 : tensor.dtype;
}

// The shards of a tensor, in order of offset and without gaps.
//   allreduce, push, pull: one per host, or as many as are long enough, whose owners are then spread over the hosts;
//     owners rotated by tensor id so that small tensors spread, too (push and pull: from `root` on, so that a key's
//     push and pull agree)
//   broadcast, reduce: one, owned by the root's host
//   allgather: the blocks of neighbouring ranks of one host; `rank_hosts` names the host of every rank, and divides the
//     elements evenly
//   reduce-scatter: the blocks of neighbouring ranks of one host, as protocol::rank_block() gives them
//   barrier: one of one element
// Not of an exchange, whose blocks have a receiver each, too (common/protocol/exchange.h).
std::vector<Shard> shards(const protocol::PlanTensor& tensor, std::uint16_t hosts,
                          std::span<const HostIndex> rank_hosts);

}  // namespace tensorlane::engine
