#include "simulator/workload/values.h"

#include <algorithm>
#include <cmath>

#include "simulator/clock/random.h"
#include "simulator/host/numbers.h"

namespace tensorlane::simulator {

using protocol::Pattern;
using protocol::PlanTensor;

namespace {
constexpr std::uint64_t kShardUnit = 16;       // elements
constexpr std::uint64_t kOneShard = 32 << 10;  // a contribution of at most this many bytes has one owner

bool is_16_bit(const PlanTensor& tensor) {
  return dtype_size(tensor.dtype) == 2;
}
std::uint64_t contribution_bytes(const PlanTensor& tensor) {
  return is_16_bit(tensor) && tensor.wide_contributions ? sizeof(float) : dtype_size(tensor.dtype);
}
}  // namespace

bool needs_wide(const PlanTensor& tensor, std::uint16_t hosts) {
  if (tensor.operation != Operation::kAllreduce || !is_16_bit(tensor)) return false;
  return tensor.wide_contributions || (tensor.pattern == Pattern::kRing && hosts > 2);
}

std::uint64_t contributed_bytes(const PlanTensor& tensor, std::uint16_t hosts) {
  if (tensor.operation != Operation::kAllreduce || hosts < 2) return 0;
  const std::uint64_t own = contribution_bytes(tensor);
  // Partial sums of 16-bit elements travel as float32.
  const std::uint64_t partial = is_16_bit(tensor) ? sizeof(float) : own;
  const std::uint64_t further = hosts - 2u;
  return tensor.elements * (own + further * (tensor.pattern == Pattern::kRing ? partial : own));
}

HostIndex owner(const PlanTensor& tensor, std::uint16_t hosts, std::uint64_t index) {
  const std::uint64_t rotation = tensor.id.value + tensor.id.value / hosts;
  std::uint64_t shard = 0;
  if (hosts > 1 && tensor.elements * contribution_bytes(tensor) > kOneShard) {
    const std::uint64_t units = tensor.elements / kShardUnit;
    std::uint64_t end = 0;
    for (; shard + 1 < hosts; ++shard) {
      end += (units / hosts + (shard < units % hosts ? 1 : 0)) * kShardUnit;
      if (index < end) break;
    }
  }
  return HostIndex(static_cast<std::uint16_t>((rotation + shard) % hosts));
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
  const bool sums = tensor.operation == Operation::kAllreduce;
  const bool only_wide = sums && is_16_bit(tensor) && tensor.wide_contributions;
  for (std::uint64_t i = 0; i < tensor.elements; ++i) {
    // What others must bring is garbage here: a host that completes without them is found out.
    const bool mine = sums || gathered_from(tensor, i) == host;
    const double number = mine ? element(host, tensor, sequence, i) : 77;
    store_element(buffer.data(), tensor.dtype, i, only_wide ? 55 : static_cast<double>(static_cast<float>(number)));
    if (!wide.empty()) store_element(wide.data(), Dtype::kFloat32, i, only_wide ? number : 33);
  }
}

// Of a broadcast or allgather: whose element this is.
HostIndex Values::gathered_from(const PlanTensor& tensor, std::uint64_t index) const {
  if (tensor.operation == Operation::kBroadcast) return tensor.root;
  return scenario_.plan.rank_hosts[index / (tensor.elements / scenario_.plan.rank_hosts.size())];
}

double Values::sum(const PlanTensor& tensor, Sequence sequence, std::uint64_t index, HostIndex owner) const {
  const std::uint16_t hosts = scenario_.hosts();
  const bool ring = tensor.pattern == Pattern::kRing;
  double sum = 0;
  for (std::uint16_t place = 0; place < hosts; ++place) {
    // The ring begins behind the owner and ends with it; a parameter server adds in the order of hosts.
    const HostIndex host(static_cast<std::uint16_t>(ring ? (owner.value + 1u + place) % hosts : place));
    std::byte own[sizeof(double)];
    const bool wide = is_16_bit(tensor) && tensor.wide_contributions;
    const Dtype dtype = wide ? Dtype::kFloat32 : tensor.dtype;
    store_element(own, dtype, 0, static_cast<double>(static_cast<float>(element(host, tensor, sequence, index))));
    const double next = load_element(own, dtype, 0);
    if (place == 0) {
      sum = next;
    } else {
      sum = dtype == Dtype::kFloat64 ? sum + next : static_cast<double>(static_cast<float>(sum + next));
    }
  }
  if (tensor.reduce == ReduceOp::kSum || scenario_.engine.world_size == 1) return sum;
  if (tensor.dtype == Dtype::kFloat64) return sum / scenario_.engine.world_size;
  return static_cast<double>(static_cast<float>(sum) / static_cast<float>(scenario_.engine.world_size));
}

std::vector<std::byte> Values::expected(const PlanTensor& tensor, Sequence sequence) const {
  std::vector<std::byte> result(tensor.elements * dtype_size(tensor.dtype));
  for (std::uint64_t i = 0; i < tensor.elements; ++i) {
    const double number =
        tensor.operation == Operation::kAllreduce
            ? sum(tensor, sequence, i, owner(tensor, scenario_.hosts(), i))
            : static_cast<double>(static_cast<float>(element(gathered_from(tensor, i), tensor, sequence, i)));
    store_element(result.data(), tensor.dtype, i, number);
  }
  return result;
}

}  // namespace tensorlane::simulator
