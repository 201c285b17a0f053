#include "simulator/workload/neighbour.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulator/clock/random.h"
#include "simulator/workload/process_sets.h"

namespace tensorlane::simulator {
namespace {

constexpr std::uint16_t kMostHosts = 6;
constexpr std::uint64_t kMostElements = 4096;  // so that an operation of one host fits in a page of staging
constexpr std::uint64_t kOthers = 0x6e65'6967;

void random_ranks(Scenario& s, Random& random) {
  s.plan.rank_hosts.clear();
  for (std::uint16_t h = 0; h < s.hosts(); ++h) {
    for (std::uint64_t left = random.chance(0.2) ? 2 : 1; left > 0; --left) s.plan.rank_hosts.push_back(HostIndex(h));
  }
  s.engine.world_size = static_cast<std::uint32_t>(s.plan.rank_hosts.size());
}

Operation common_operation(Random& random) {
  constexpr std::array<Operation, 4> kRare = {Operation::kBroadcast, Operation::kAllgather, Operation::kReduceScatter,
                                              Operation::kBarrier};
  return random.chance(0.6) ? Operation::kAllreduce : kRare[random.below(kRare.size())];
}

// `like`: of the other job. A tensor of its class and pattern, and no larger, fits in its staging.
protocol::PlanTensor random_tensor(const Scenario& s, const protocol::PlanTensor& like, Random& random) {
  protocol::PlanTensor t;
  t.id = TensorId(static_cast<std::uint32_t>(s.plan.tensors.size()));
  t.name = fmt::format("n{}", t.id.value);
  t.operation = common_operation(random);
  t.dtype = static_cast<Dtype>(random.below(kDtypeCount));
  const auto reduce = static_cast<ReduceOp>(random.below(kReduceOpCount));
  t.reduce = can_reduce(reduce, t.dtype) ? reduce : ReduceOp::kSum;
  t.pattern = like.pattern;
  t.urgency = like.urgency;
  t.cls = like.cls;
  t.elements = random.between(1, random.chance(0.5) ? 64 : kMostElements);
  if (t.operation == Operation::kAllgather) t.elements = (1 + t.elements / s.engine.world_size) * s.engine.world_size;
  if (t.operation == Operation::kBarrier) t.elements = 0;
  t.slice_elements = random.chance(0.5) ? 1024 : 16384;
  t.root = HostIndex(static_cast<std::uint16_t>(random.below(s.hosts())));
  const auto root_rank = std::ranges::find(s.plan.rank_hosts, t.root) - s.plan.rank_hosts.begin();
  t.root_rank = Rank(static_cast<std::uint32_t>(root_rank));
  t.fp32_contributions = reduces(t.operation) && dtype_size(t.dtype) == 2 && s.engine.world_size > s.hosts();
  return t;
}

void random_plan(Scenario& s, const protocol::Plan& other, Random& random) {
  s.plan.tensors.clear();
  for (std::uint64_t left = random.between(1, 3); left > 0; --left)
    s.plan.tensors.push_back(random_tensor(s, other.tensors[random.below(other.tensors.size())], random));
  s.plan.ordering = protocol::Ordering::kTagged;
  if (random.chance(0.5)) s.plan.ordering = static_cast<protocol::Ordering>(random.below(protocol::kOrderingCount));
  s.plan.concurrent = static_cast<std::uint32_t>(random.between(1, 2));
  s.iterations = random.between(3, 8);
  s.growths.clear();
  s.tensors_at_start = s.plan.tensors.size();
  for (protocol::PlanTensor& t : s.plan.tensors) t.group = t.id.value / 2;
  if (!random.chance(0.2)) return;
  s.tensors_at_start = random.below(s.plan.tensors.size());
  const Time at = s.begins + s.spread + random.between(microseconds(1), milliseconds(3));
  s.growths.push_back({at, microseconds(500), s.plan.tensors.size()});
  for (std::size_t i = s.tensors_at_start; i < s.plan.tensors.size(); ++i) s.plan.tensors[i].group = 1;
}

// What happens to machines, and to this job's own connections.
bool strikes(const Fault& fault, std::uint16_t hosts) {
  const bool here = fault.host.value < hosts;
  switch (fault.kind) {
    case FaultKind::kPartition:
      return here && fault.peer.value < hosts;
    case FaultKind::kSlowPort:
    case FaultKind::kFreezeDaemon:
    case FaultKind::kKillDaemon:
      return here;
    case FaultKind::kResetFlow:
      return fault.job == 1;
    case FaultKind::kFreezeClient:
    case FaultKind::kKillClient:
      return false;
  }
  return false;
}

}  // namespace

void random_shrink(Scenario& s, Random& random) {
  s.shrink.reset();
  const bool fits = s.growths.empty() && s.tensors_at_start >= s.plan.tensors.size() && !s.client.in_step;
  if (!fits || s.iterations < 2 || !random.chance(0.3)) return;
  const std::uint32_t group = s.plan.tensors[random.below(s.plan.tensors.size())].group;
  Shrink shrink{.iterations = random.between(1, s.iterations - 1), .returns = random.chance(0.6)};
  for (const protocol::PlanTensor& t : s.plan.tensors) {
    if (t.group == group && shrink.range.count++ == 0) shrink.range.first = t.id.value;
  }
  s.shrink = shrink;
}

void add_neighbour(Scenario& scenario) {
  Scenario s = scenario;
  s.neighbours.clear();
  s.networks.clear();
  s.seed = mix(scenario.seed ^ kOthers);
  Random random(s.seed);
  s.user = scenario.user + 1;
  s.engine.job = JobId(mix(s.seed));
  s.engine.epoch = Epoch(static_cast<std::uint32_t>(random.between(1, 100)));
  const std::uint16_t most = std::min(scenario.hosts(), kMostHosts);
  s.engine.hosts = random.chance(0.6) ? most : static_cast<std::uint16_t>(random.between(1, most));
  s.begins = random.chance(0.4) ? Time() : Time() + random.between(microseconds(1), milliseconds(3));
  s.spread = random.chance(0.5) ? Duration(0) : random.between(microseconds(1), milliseconds(1));
  random_ranks(s, random);
  random_plan(s, scenario.plan, random);
  s.client = {.think = random.between(microseconds(1), milliseconds(1)),
              .ahead = random.chance(0.7),
              .raise = random.chance(0.5) ? 0.1 : 0.5};
  random_sets(s);
  random_parts(s);
  s.messages = {};
  if (scenario.hosts() <= kMostHostsWithMessages) random_messages(s);
  s.liar.reset();
  s.lie.reset();
  random_shrink(s, random);
  if (random.chance(0.1)) {
    const HostIndex host(static_cast<std::uint16_t>(random.below(s.hosts())));
    s.refusal = {host, random.below(2 * s.rails() + s.plan.tensors.size())};
  }
  s.whole_numbers = random.chance(0.2);
  s.leaves = random.chance(0.7);
  for (Fault& fault : scenario.faults) {
    const bool both_here = fault.host.value < s.hosts() && fault.peer.value < s.hosts();
    if (fault.kind == FaultKind::kResetFlow && both_here && random.chance(0.3)) fault.job = 1;
  }
  s.faults = scenario.faults;
  std::erase_if(s.faults, [&](const Fault& fault) { return !strikes(fault, s.hosts()); });
  scenario.leaves = random.chance(0.5);
  scenario.neighbours.push_back(std::move(s));
}

}  // namespace tensorlane::simulator
