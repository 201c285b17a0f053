#include "simulator/workload/values.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  return is_16_bit(tensor) && tensor.wide_contributions ? sizeof(float) : dtype_size(tensor.dtype);
}
bool is_server(Pattern pattern) {
  return pattern == Pattern::kParameterServer || pattern == Pattern::kWholeServer;
}
}  // namespace

bool sums(const PlanTensor& tensor) {
  return tensor.operation == Operation::kAllreduce || tensor.operation == Operation::kPush;
}

bool needs_wide(const PlanTensor& tensor, std::uint16_t hosts) {
  if (!sums(tensor) || !is_16_bit(tensor)) return false;
  return tensor.wide_contributions || (!is_server(tensor.pattern) && hosts > 2);
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
    for (unsigned step = 1; step < n; step *= 2)
      for (unsigned place = step; place < n; place += 2 * step) pass((o + place) % n, (o + place - step) % n);
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

std::uint64_t contributed_bytes(const PlanTensor& tensor, std::uint16_t hosts) {
  if (!sums(tensor) || hosts < 2) return 0;
  const std::uint64_t own = contribution_bytes(tensor);
  // Partial sums of 16-bit elements travel as float32.
  const std::uint64_t partial = is_16_bit(tensor) ? sizeof(float) : own;
  std::uint64_t bytes = 0;
  for (std::uint64_t begin = 0, end = 0; begin < tensor.elements; begin = end) {
    const HostIndex summing = owner(tensor, hosts, begin, &end);
    const std::vector<Passing> list = passings(tensor.pattern, hosts, summing);
    for (const Passing& p : list)
      bytes += (end - begin) * (std::ranges::count(list, p.from, &Passing::to) > 0 ? partial : own);
  }
  return bytes;
}

HostIndex owner(const PlanTensor& tensor, std::uint16_t hosts, std::uint64_t index, std::uint64_t* shard_end) {
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

double Values::element(HostIndex host, const PlanTensor& tensor, Sequence sequence, std::uint64_t index) const {
  const std::uint64_t bits =
      mix(mix(mix(scenario_.seed ^ (std::uint64_t{tensor.id.value} << 20) ^ host.value) + sequence.value) ^ index);
  if (scenario_.whole_numbers) return static_cast<double>(bits % 17) - 8;
  // Mantissas of 20 bits and magnitudes that differ: sums round, so that their order shows.
  const double mantissa = static_cast<double>(bits % (1u << 20)) / (1u << 19) - 1;
  return std::ldexp(mantissa, static_cast<int>((bits >> 32) % 8) - 4);
}

void Values::contribute(HostIndex host, const PlanTensor& tensor, Sequence sequence, std::span<std::byte> buffer,
                        std::span<std::byte> wide) const {
  const bool only_wide = sums(tensor) && is_16_bit(tensor) && tensor.wide_contributions;
  for (std::uint64_t i = 0; i < tensor.elements; ++i) {
    // What others must bring is garbage here: a host that completes without them is found out.
    const bool mine = sums(tensor) || gathered_from(tensor, i) == host;
    const double number = mine ? element(host, tensor, sequence, i) : 77;
    store_element(buffer.data(), tensor.dtype, i, only_wide ? 55 : static_cast<double>(static_cast<float>(number)));
    if (!wide.empty()) store_element(wide.data(), Dtype::kFloat32, i, only_wide ? number : 33);
  }
}

// Of a broadcast, pull or allgather: whose element this is.
HostIndex Values::gathered_from(const PlanTensor& tensor, std::uint64_t index) const {
  if (tensor.operation == Operation::kBroadcast) return tensor.root;
  if (tensor.operation == Operation::kPull) return owner(tensor, scenario_.hosts(), index);
  return scenario_.plan.rank_hosts[index / (tensor.elements / scenario_.plan.rank_hosts.size())];
}

double Values::sum(const PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner,
                   std::span<const Passing> way) const {
  const bool wide = is_16_bit(tensor) && tensor.wide_contributions;
  const Dtype dtype = wide ? Dtype::kFloat32 : tensor.dtype;
  std::vector<double> sums;  // by host: of what has reached it so far
  for (std::uint16_t host = 0; host < scenario_.hosts(); ++host) {
    std::byte own[sizeof(double)];
    const double number = element(HostIndex(host), tensor, sequence, index);
    store_element(own, dtype, 0, static_cast<double>(static_cast<float>(number)));
    sums.push_back(load_element(own, dtype, 0));
  }
  const auto add = [&](double a, double b) {
    return dtype == Dtype::kFloat64 ? a + b : static_cast<double>(static_cast<float>(a + b));
  };
  double sum = sums[0];
  if (is_server(tensor.pattern)) {  // adds in the order of hosts, wherever the owner is among them
    for (std::size_t host = 1; host < sums.size(); ++host) sum = add(sum, sums[host]);
  } else {
    for (const Passing& p : way) sums[p.to.value] = add(sums[p.to.value], sums[p.from.value]);
    sum = sums[owner.value];
  }
  if (tensor.reduce == ReduceOp::kSum || scenario_.engine.world_size == 1) return sum;
  if (tensor.dtype == Dtype::kFloat64) return sum / scenario_.engine.world_size;
  return static_cast<double>(static_cast<float>(sum) / static_cast<float>(scenario_.engine.world_size));
}

std::vector<std::byte> Values::expected(const PlanTensor& tensor, Sequence sequence) const {
  std::vector<std::byte> result(tensor.elements * dtype_size(tensor.dtype));
  const bool summed = sums(tensor);
  HostIndex summing;
  std::vector<Passing> way;
  for (std::uint64_t i = 0, shard_end = 0; i < tensor.elements; ++i) {
    if (summed && i == shard_end) {
      summing = owner(tensor, scenario_.hosts(), i, &shard_end);
      way = passings(tensor.pattern, scenario_.hosts(), summing);
    }
    const double number =
        summed ? sum(tensor, sequence, i, summing, way)
               : static_cast<double>(static_cast<float>(element(gathered_from(tensor, i), tensor, sequence, i)));
    store_element(result.data(), tensor.dtype, i, number);
  }
  return result;
}

}  // namespace tensorlane::simulator
