#include "simulator/workload/values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "common/base/assert.h"
#include "simulator/clock/random.h"
#include "simulator/host/numbers.h"

namespace tensorlane::simulator {

using protocol::Pattern;
using protocol::PlanTensor;

namespace {
constexpr std::uint64_t kShardUnit = 16;       // elements
constexpr std::uint64_t kOneShard = 32 << 10;  // a contribution of at most this many bytes has one owner
constexpr std::uint64_t kSmallestShard = 4 << 10;

bool is_16_bit(const PlanTensor& tensor) {
  return dtype_size(tensor.dtype) == 2;
}
std::uint64_t contribution_bytes(const PlanTensor& tensor) {
  return is_16_bit(tensor) && tensor.fp32_contributions ? sizeof(float) : dtype_size(tensor.dtype);
}
bool is_server(Pattern pattern) {
  return pattern == Pattern::kParameterServer || pattern == Pattern::kWholeServer;
}

// What `add` makes of the hosts' contributions at the owner.
template <typename T, typename Add>
T gather(Pattern pattern, HostIndex owner, std::span<const Passing> way, std::vector<T> of_hosts, Add&& add) {
  if (is_server(pattern)) {  // adds in the order of hosts, wherever the owner is among them
    for (std::size_t host = 1; host < of_hosts.size(); ++host) of_hosts[0] = add(of_hosts[0], of_hosts[host]);
    return of_hosts[0];
  }
  for (const Passing& p : way) of_hosts[p.to.value] = add(of_hosts[p.to.value], of_hosts[p.from.value]);
  return of_hosts[owner.value];
}
}  // namespace

std::uint64_t buffer_elements(const PlanTensor& tensor, std::uint32_t world_size, Rank rank) {
  const bool rooted = tensor.operation == Operation::kGather || tensor.operation == Operation::kScatter;
  return rooted && rank != tensor.root_rank ? tensor.elements / world_size : tensor.elements;
}

Exchanged exchanged_at(const PlanTensor& tensor, std::uint32_t world_size, Rank rank, std::uint64_t index) {
  const auto at = [](std::uint64_t number) { return Rank(static_cast<std::uint32_t>(number)); };
  if (tensor.operation == Operation::kAlltoall) {
    const std::uint64_t half = tensor.elements / 2, part = half / world_size;
    if (index < half) return {rank, at(index / part), index % part, true};
    return {at((index - half) / part), rank, (index - half) % part, false};
  }
  const std::uint64_t part = tensor.elements / world_size;
  const Rank whose = rank == tensor.root_rank ? at(index / part) : rank;
  if (tensor.operation == Operation::kGather) return {whose, tensor.root_rank, index % part, whose == rank};
  return {tensor.root_rank, whose, index % part, rank == tensor.root_rank};
}

std::uint64_t exchanged_bytes(const PlanTensor& tensor, std::span<const HostIndex> rank_hosts) {
  const auto ranks = static_cast<std::uint32_t>(rank_hosts.size());
  std::uint64_t elements = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint64_t i = 0; i < buffer_elements(tensor, ranks, Rank(rank)); ++i) {
      const Exchanged e = exchanged_at(tensor, ranks, Rank(rank), i);
      if (!e.given && rank_hosts[e.from.value] != rank_hosts[e.to.value]) ++elements;
    }
  }
  return elements * dtype_size(tensor.dtype);
}

bool sums(const PlanTensor& tensor) {
  return reduces(tensor.operation);
}

bool needs_fp32_scratch(const PlanTensor& tensor, std::uint16_t hosts) {
  if (!sums(tensor) || !is_16_bit(tensor)) return false;
  return tensor.fp32_contributions || (!is_server(tensor.pattern) && hosts > 2);
}

std::vector<Passing> passings(Pattern pattern, std::uint16_t hosts, HostIndex owner) {
  std::vector<Passing> list;
  const auto pass = [&](unsigned from, unsigned to) {
    list.push_back({HostIndex(static_cast<std::uint16_t>(from)), HostIndex(static_cast<std::uint16_t>(to))});
  };
  const unsigned n = hosts, o = owner.value;
  if (pattern == Pattern::kRing) {
    for (unsigned i = 1; i < n; ++i) pass((o + i) % n, (o + i + 1) % n);
  } else if (is_server(pattern)) {
    for (unsigned h = 0; h < n; ++h)
      if (h != o) pass(h, o);
  } else if (pattern == Pattern::kTree) {
    // Place p hears from p + d for every power of two d above p, the nearest first.
    const std::function<void(unsigned)> gather = [&](unsigned place) {
      for (unsigned d = 1; place + d < n; d *= 2) {
        if (d <= place) continue;
        gather(place + d);
        pass((o + place + d) % n, (o + place) % n);
      }
    };
    gather(0);
  } else {
    unsigned core = 1;
    while (core * 2 <= n) core *= 2;
    const unsigned root = o % core;
    for (unsigned h = core; h < n; ++h)
      if (h != o) pass(h, h - core);
    for (unsigned distance = core / 2; distance > 0; distance /= 2)
      for (unsigned h = 0; h < core; ++h)
        if ((h ^ root) / distance == 1) pass(h, h ^ distance);
    if (o >= core) pass(root, o);
  }
  return list;
}

std::uint16_t most_sources(Pattern pattern, std::uint16_t hosts) {
  std::size_t most = 0;
  for (std::uint16_t owner = 0; owner < hosts; ++owner) {
    const std::vector<Passing> list = passings(pattern, hosts, HostIndex(owner));
    for (std::uint16_t host = 0; host < hosts; ++host) {
      const auto received = std::ranges::count(list, HostIndex(host), &Passing::to);
      most = std::max(most, static_cast<std::size_t>(received));
    }
  }
  return static_cast<std::uint16_t>(most);
}

std::uint64_t contributed_bytes(const PlanTensor& tensor, std::span<const HostIndex> rank_hosts, std::uint16_t hosts) {
  if (!sums(tensor) || hosts < 2) return 0;
  const std::uint64_t own = contribution_bytes(tensor);
  // Partial sums of 16-bit elements travel as float32.
  const std::uint64_t partial = is_16_bit(tensor) ? sizeof(float) : own;
  std::uint64_t bytes = 0;
  for (std::uint64_t begin = 0, end = 0; begin < tensor.elements; begin = end) {
    const HostIndex summing = owner(tensor, rank_hosts, hosts, begin, &end);
    const std::vector<Passing> list = passings(tensor.pattern, hosts, summing);
    for (const Passing& p : list)
      bytes += (end - begin) * (std::ranges::count(list, p.from, &Passing::to) > 0 ? partial : own);
  }
  return bytes;
}

std::size_t contribution_element_bytes(const PlanTensor& tensor, bool leaf) {
  return leaf || !is_16_bit(tensor) ? contribution_bytes(tensor) : sizeof(float);
}

std::vector<PlannedSlice> planned_slices(const PlanTensor& tensor, std::span<const HostIndex> rank_hosts,
                                         std::uint16_t hosts) {
  const bool barrier = tensor.operation == Operation::kBarrier;
  std::vector<PlannedSlice> slices;
  if ((!sums(tensor) && !barrier && tensor.operation != Operation::kPull) || tensor.in_batch()) return slices;
  const std::uint64_t elements = barrier ? 1 : tensor.elements;
  PlanTensor owned = tensor;
  if (barrier) owned.pattern = Pattern::kRing;  // its owner goes round, whatever the pattern
  for (std::uint64_t begin = 0, end = elements; begin < elements; begin = end) {
    const HostIndex owning = owner(owned, rank_hosts, hosts, begin, &end);
    if (barrier) end = elements;
    // Blocks of neighbouring ranks of one host are one shard.
    for (std::uint64_t further = end; tensor.operation == Operation::kReduceScatter && end < elements; end = further) {
      if (owner(tensor, rank_hosts, hosts, end, &further) != owning) break;
    }
    for (std::uint64_t at = begin; at < end; at += tensor.slice_elements)
      slices.push_back({at, std::min<std::uint64_t>(tensor.slice_elements, end - at), owning});
  }
  return slices;
}

// Counted out row by row, as ranks would deal them.
HostIndex scattered_to(const PlanTensor& tensor, std::span<const HostIndex> rank_hosts, std::uint64_t index,
                       std::uint64_t* shard_end) {
  const std::uint64_t rows = tensor.elements / tensor.row, ranks = rank_hosts.size();
  std::uint64_t end = 0;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    end += (rows / ranks + (rank < rows % ranks ? 1 : 0)) * tensor.row;
    if (index >= end) continue;
    if (shard_end != nullptr) *shard_end = end;
    return rank_hosts[rank];
  }
  TL_ASSERT(false && "an element of nobody");
}

HostIndex owner(const PlanTensor& tensor, std::span<const HostIndex> rank_hosts, std::uint16_t hosts,
                std::uint64_t index, std::uint64_t* shard_end) {
  if (tensor.operation == Operation::kReduceScatter) return scattered_to(tensor, rank_hosts, index, shard_end);
  if (tensor.operation == Operation::kReduce) {
    if (shard_end != nullptr) *shard_end = tensor.elements;
    return tensor.root;
  }
  const bool keyed = tensor.operation == Operation::kPush || tensor.operation == Operation::kPull;
  const bool whole = tensor.pattern == Pattern::kWholeServer;
  const std::uint64_t rotation = keyed || whole ? tensor.root.value : tensor.id.value + tensor.id.value / hosts;
  std::uint64_t shard = 0, end = tensor.elements, stride = 1;
  const std::uint64_t bytes = tensor.elements * contribution_bytes(tensor);
  if (hosts > 1 && !whole && bytes > kOneShard) {
    const bool few_sources = tensor.pattern == Pattern::kHalvingDoubling || tensor.pattern == Pattern::kTree;
    const std::uint64_t least = few_sources ? kOneShard : kSmallestShard;
    const std::uint64_t count = std::min<std::uint64_t>(hosts, (bytes + least - 1) / least);
    if (count < hosts) {
      stride = static_cast<std::uint64_t>(hosts * 0.6180339887);
      while (std::gcd(stride, hosts) != 1) ++stride;
    }
    const std::uint64_t units = tensor.elements / kShardUnit;
    end = 0;
    for (; shard + 1 < count; ++shard) {
      end += (units / count + (shard < units % count ? 1 : 0)) * kShardUnit;
      if (index < end) break;
    }
    if (shard + 1 == count) end = tensor.elements;
  }
  if (shard_end != nullptr) *shard_end = end;
  return HostIndex(static_cast<std::uint16_t>((rotation + shard * stride) % hosts));
}

Rank Values::number_of(Rank rank, const PlanTensor& tensor) const {
  const std::optional<std::uint32_t> number = world(tensor).number_of(rank);
  TL_ASSERT(number);
  return Rank(*number);
}

// Every rank of the job has its own, whatever the set.
std::uint64_t Values::bits(Rank rank, const PlanTensor& tensor, Sequence sequence, std::uint64_t index) const {
  const std::uint32_t whose = world(tensor).rank(rank.value).value;
  return mix(mix(mix(scenario_.seed ^ (std::uint64_t{tensor.id.value} << 20) ^ whose) + sequence.value) ^ index);
}

// Any: sums and products wrap around.
std::int64_t Values::integer(Rank rank, const PlanTensor& tensor, Sequence sequence, std::uint64_t index) const {
  std::byte own[sizeof(std::int64_t)];
  store_integer(own, tensor.dtype, 0, static_cast<std::int64_t>(bits(rank, tensor, sequence, index)));
  return load_integer(own, tensor.dtype, 0);
}

double Values::element(Rank rank, const PlanTensor& tensor, Sequence sequence, std::uint64_t index) const {
  const std::uint64_t bits = this->bits(rank, tensor, sequence, index);
  const bool compares = tensor.reduce == ReduceOp::kMin || tensor.reduce == ReduceOp::kMax;
  if (sums(tensor) && compares && (bits >> 40) % 64 == 0) return std::numeric_limits<double>::quiet_NaN();
  if (scenario_.whole_numbers) return static_cast<double>(bits % 17) - 8;
  // Mantissas of 20 bits and magnitudes that differ: sums round, so that their order shows.
  const double mantissa = static_cast<double>(bits % (1u << 20)) / (1u << 19) - 1;
  return std::ldexp(mantissa, static_cast<int>((bits >> 32) % 8) - 4);
}

Rank Values::first_rank(const PlanTensor& tensor, HostIndex host) const {
  const std::vector<HostIndex>& rank_hosts = world(tensor).rank_hosts();
  return Rank(static_cast<std::uint32_t>(std::ranges::find(rank_hosts, host) - rank_hosts.begin()));
}

Rank Values::owner(const PlanTensor& tensor, std::uint64_t index) const {
  const TensorWorld& of = world(tensor);
  const HostIndex host = simulator::owner(tensor, of.rank_hosts(), of.hosts(), index);
  if (tensor.operation == Operation::kReduce) return of.rank(tensor.root_rank.value);
  if (tensor.operation != Operation::kReduceScatter) return of.rank(first_rank(tensor, host).value);
  const std::uint64_t rows = tensor.elements / tensor.row, ranks = of.size();
  std::uint64_t end = 0;
  for (std::uint32_t rank = 0;; ++rank) {
    end += (rows / ranks + (rank < rows % ranks ? 1 : 0)) * tensor.row;
    if (index < end) return of.rank(rank);
  }
}

void Values::store_exchanged(Rank rank, const PlanTensor& tensor, Sequence sequence, std::uint64_t index,
                             std::span<std::byte> buffer) const {
  const Exchanged e = exchanged_at(tensor, world(tensor).size(), rank, index);
  const std::uint64_t of_pair = (std::uint64_t{e.to.value} << 32) + e.index;
  if (is_integer(tensor.dtype)) {
    store_integer(buffer.data(), tensor.dtype, index, integer(e.from, tensor, sequence, of_pair));
  } else {
    const auto number = static_cast<float>(element(e.from, tensor, sequence, of_pair));
    store_element(buffer.data(), tensor.dtype, index, static_cast<double>(number));
  }
}

std::vector<std::byte> Values::exchanged(Rank rank, const PlanTensor& tensor, Sequence sequence) const {
  const Rank number = number_of(rank, tensor);
  const std::uint64_t elements = buffer_elements(tensor, world(tensor).size(), number);
  std::vector<std::byte> all(elements * dtype_size(tensor.dtype));
  for (std::uint64_t i = 0; i < elements; ++i) store_exchanged(number, tensor, sequence, i, all);
  return all;
}

void Values::contribute(Rank rank, const PlanTensor& tensor, Sequence sequence, std::span<std::byte> buffer) const {
  const Rank own = number_of(rank, tensor);
  for (std::uint64_t i = 0; exchanges(tensor.operation) && i < buffer.size() / dtype_size(tensor.dtype); ++i) {
    if (exchanged_at(tensor, world(tensor).size(), own, i).given) {
      store_exchanged(own, tensor, sequence, i, buffer);
    } else if (is_integer(tensor.dtype)) {
      store_integer(buffer.data(), tensor.dtype, i, 77);
    } else {
      store_element(buffer.data(), tensor.dtype, i, 77);
    }
  }
  if (exchanges(tensor.operation)) return;
  for (std::uint64_t i = 0; i < tensor.elements; ++i) {
    // What others must bring is garbage here: a rank that completes without them is found out.
    const bool mine = brings(rank, tensor, i);
    if (is_integer(tensor.dtype)) {
      store_integer(buffer.data(), tensor.dtype, i, mine ? integer(own, tensor, sequence, i) : 77);
      continue;
    }
    const double number = mine ? element(own, tensor, sequence, i) : 77;
    store_element(buffer.data(), tensor.dtype, i, static_cast<double>(static_cast<float>(number)));
  }
}

bool Values::brings(Rank rank, const PlanTensor& tensor, std::uint64_t index) const {
  return sums(tensor) || gathered_from(tensor, index) == number_of(rank, tensor);
}

// Of a broadcast, pull or allgather: whose element this is.
Rank Values::gathered_from(const PlanTensor& tensor, std::uint64_t index) const {
  if (tensor.operation == Operation::kBroadcast) return tensor.root_rank;
  const TensorWorld& of = world(tensor);
  if (tensor.operation == Operation::kPull)
    return first_rank(tensor, simulator::owner(tensor, of.rank_hosts(), of.hosts(), index));
  return Rank(static_cast<std::uint32_t>(index / (tensor.elements / of.size())));
}

// The ranks of a host first, in their order; then between hosts.
double Values::sum(const PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner,
                   std::span<const Passing> way) const {
  const bool is_64_bit = tensor.dtype == Dtype::kFloat64;
  const std::vector<HostIndex>& rank_hosts = world(tensor).rank_hosts();
  std::vector<double> of_hosts;
  for (std::uint32_t rank = 0; rank < rank_hosts.size(); ++rank) {
    std::byte own[sizeof(double)];
    const double number = element(Rank(rank), tensor, sequence, index);
    store_element(own, tensor.dtype, 0, static_cast<double>(static_cast<float>(number)));
    const double one = load_element(own, tensor.dtype, 0);
    const bool next_host = rank == 0 || rank_hosts[rank] != rank_hosts[rank - 1];
    if (next_host) {
      of_hosts.push_back(one);
    } else {
      of_hosts.back() = combine(of_hosts.back(), one, combining(tensor.reduce), is_64_bit);
    }
  }
  const double sum = gather(tensor.pattern, owner, way, std::move(of_hosts),
                            [&](double a, double b) { return combine(a, b, combining(tensor.reduce), is_64_bit); });
  const std::size_t ranks = rank_hosts.size();
  if (tensor.reduce != ReduceOp::kAverage || ranks == 1) return sum;
  if (is_64_bit) return sum / static_cast<double>(ranks);
  return static_cast<double>(static_cast<float>(sum) / static_cast<float>(ranks));
}

std::int64_t Values::integer_sum(const PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner,
                                 std::span<const Passing> way) const {
  const auto add = [&](std::int64_t a, std::int64_t b) { return combine_integers(a, b, tensor.reduce, tensor.dtype); };
  const std::vector<HostIndex>& rank_hosts = world(tensor).rank_hosts();
  std::vector<std::int64_t> of_hosts;
  for (std::uint32_t rank = 0; rank < rank_hosts.size(); ++rank) {
    const std::int64_t one = integer(Rank(rank), tensor, sequence, index);
    const bool next_host = rank == 0 || rank_hosts[rank] != rank_hosts[rank - 1];
    if (next_host) {
      of_hosts.push_back(one);
    } else {
      of_hosts.back() = add(of_hosts.back(), one);
    }
  }
  return gather(tensor.pattern, owner, way, std::move(of_hosts), add);
}

std::vector<std::byte> Values::expected(const PlanTensor& tensor, Sequence sequence) const {
  std::vector<std::byte> result(tensor.bytes());
  const bool summed = sums(tensor);
  // A member of a batch is summed where that part of the batch is.
  const PlanTensor& cut = scenario_.plan.tensors[tensor.operation_id().value];
  PlanTensor moved = tensor;
  moved.pattern = cut.pattern;
  HostIndex summing;
  std::vector<Passing> way;
  for (std::uint64_t i = 0, shard_end = 0; i < tensor.elements; ++i) {
    if (summed && (i == 0 || tensor.batch_offset + i == shard_end)) {
      const TensorWorld& of = world(cut);
      summing = simulator::owner(cut, of.rank_hosts(), of.hosts(), tensor.batch_offset + i, &shard_end);
      way = passings(cut.pattern, of.hosts(), summing);
    }
    if (is_integer(tensor.dtype)) {
      store_integer(result.data(), tensor.dtype, i,
                    summed ? integer_sum(moved, sequence, i, summing, way)
                           : integer(gathered_from(tensor, i), tensor, sequence, i));
      continue;
    }
    const double number =
        summed ? sum(moved, sequence, i, summing, way)
               : static_cast<double>(static_cast<float>(element(gathered_from(tensor, i), tensor, sequence, i)));
    store_element(result.data(), tensor.dtype, i, number);
  }
  return result;
}

}  // namespace tensorlane::simulator
