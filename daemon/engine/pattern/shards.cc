#include "daemon/engine/pattern/shards.h"

#include <algorithm>
#include <numeric>

#include "common/base/assert.h"
#include "common/protocol/rank_block.h"
#include "daemon/engine/pattern/whole_server.h"

namespace tensorlane::engine {
namespace {

// Moves by one with every tensor, and by one more every `hosts` tensors: otherwise the biases of a network, which often
// are every second tensor, would all fall to half of the hosts.
std::uint32_t rotation(TensorId tensor, std::uint16_t hosts) {
  return (tensor.value + tensor.value / hosts) % hosts;
}

HostIndex rotated_owner(const protocol::PlanTensor& tensor, std::uint32_t shard, std::uint16_t hosts) {
  const std::uint32_t first = is_keyed(tensor.operation) ? tensor.root.value : rotation(tensor.id, hosts);
  return HostIndex(static_cast<std::uint16_t>((first + shard) % hosts));
}

std::uint16_t shard_count(const protocol::PlanTensor& tensor, std::uint16_t hosts) {
  const bool few_sources =
      tensor.pattern == protocol::Pattern::kHalvingDoubling || tensor.pattern == protocol::Pattern::kTree;
  const Bytes smallest = few_sources ? kWholeTensor : kSmallestShard;
  const std::uint64_t bytes = tensor.elements * dtype_size(contribution_dtype(tensor));
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(hosts, (bytes + smallest.value - 1) / smallest.value));
}

// Owners this far apart, modulo `hosts`, are all different, and any number of them are spread over the whole range and
// over its even and odd places alike, so that no host is near the root of every tree: about the golden section of
// `hosts`, and no divisor in common with it (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
std::uint16_t spreading_stride(std::uint16_t hosts) {
  auto stride = static_cast<std::uint16_t>(static_cast<double>(hosts) * 0.6180339887);
  while (std::gcd(stride, hosts) != 1) ++stride;
  return stride;
}

std::vector<Shard> allreduce_shards(const protocol::PlanTensor& tensor, std::uint16_t hosts) {
  if (tensor.pattern == protocol::Pattern::kWholeServer) return {whole_server_shard(tensor)};
  if (hosts == 1 || tensor.elements * dtype_size(contribution_dtype(tensor)) <= kWholeTensor.value) {
    return {{0, tensor.elements, rotated_owner(tensor, 0, hosts)}};
  }
  const std::uint16_t count = shard_count(tensor, hosts);
  const std::uint16_t stride = count == hosts ? 1 : spreading_stride(hosts);
  const std::uint64_t units = tensor.elements / kShardAlignment;
  std::vector<Shard> result;
  std::uint64_t offset = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t elements = (units / count + (i < units % count ? 1 : 0)) * kShardAlignment;
    if (i + 1 == count)
      elements = tensor.elements - offset;  // the last one is a small one: it takes what is less than a unit, too
    result.push_back({offset, elements, rotated_owner(tensor, i * stride, hosts)});
    offset += elements;
  }
  return result;
}

// Every rank's block belongs to its host.
std::vector<Shard> block_shards(const protocol::PlanTensor& tensor, std::uint64_t row,
                                std::span<const HostIndex> rank_hosts) {
  const auto ranks = static_cast<std::uint32_t>(rank_hosts.size());
  std::vector<Shard> result;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const protocol::RankBlock block = protocol::rank_block(tensor.elements, row, ranks, rank);
    if (block.elements == 0) break;
    if (!result.empty() && result.back().owner == rank_hosts[rank]) {
      result.back().elements += block.elements;
    } else {
      result.push_back({block.offset, block.elements, rank_hosts[rank]});
    }
  }
  return result;
}

}  // namespace

std::vector<Shard> shards(const protocol::PlanTensor& tensor, std::uint16_t hosts,
                          std::span<const HostIndex> rank_hosts) {
  switch (tensor.operation) {
    case Operation::kAllreduce:
    case Operation::kPush:
    case Operation::kPull:
      return allreduce_shards(tensor, hosts);
    case Operation::kBroadcast:
    case Operation::kReduce:
      return {{0, tensor.elements, tensor.root}};
    case Operation::kAllgather:
      TL_ASSERT(!rank_hosts.empty() && tensor.elements % rank_hosts.size() == 0);
      return block_shards(tensor, 1, rank_hosts);
    case Operation::kReduceScatter:
      TL_ASSERT(!rank_hosts.empty() && tensor.elements % tensor.row == 0);
      return block_shards(tensor, tensor.row, rank_hosts);
    case Operation::kBarrier:
      return {{0, 1, rotated_owner(tensor, 0, hosts)}};
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAlltoall:
      break;
  }
  TL_ASSERT(false && "unknown operation");
}

}  // namespace tensorlane::engine
