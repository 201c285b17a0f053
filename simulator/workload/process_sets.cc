#include "simulator/workload/process_sets.h"

#include <memory>
#include <utility>
#include <vector>

#include "simulator/clock/random.h"

namespace tensorlane::simulator {
namespace {

using protocol::PlanTensor;
using protocol::SharedWorld;

constexpr std::uint64_t kOfProcessSets = 0x7365'7473'0000'0000;
constexpr double kJobsWithSets = 0.4;
constexpr double kGroupsOfSets = 0.6;

// Some of one host's ranks, one rank, all ranks of some hosts, or any.
std::vector<std::uint32_t> random_members(const Scenario& s, Random& random) {
  const std::vector<HostIndex>& hosts = s.plan.rank_hosts;
  const std::uint64_t kind = random.below(100);
  const HostIndex host = hosts[random.below(hosts.size())];
  std::vector<bool> hosts_in;
  for (std::uint16_t h = 0; h < s.hosts(); ++h) hosts_in.push_back(random.chance(0.6));
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    const bool any = random.chance(0.6);
    const bool in = kind < 15   ? hosts[rank] == host && any
                    : kind < 25 ? false
                    : kind < 50 ? hosts_in[hosts[rank].value]
                                : any;
    if (in) ranks.push_back(rank);
  }
  if (ranks.empty()) ranks.push_back(static_cast<std::uint32_t>(random.below(hosts.size())));
  return ranks;
}

// None where it would be of all ranks.
SharedWorld random_set(const Scenario& s, Random& random) {
  const std::vector<std::uint32_t> ranks = random_members(s, random);
  if (ranks.size() == s.plan.rank_hosts.size()) return nullptr;
  std::vector<HostIndex> hosts;
  for (const std::uint32_t rank : ranks) hosts.push_back(s.plan.rank_hosts[rank]);
  return std::make_shared<const protocol::World>(ranks, hosts);
}

// As if the job had only the ranks of the set. What every rank has a block of becomes no larger.
void give_to(PlanTensor& t, SharedWorld set, const Scenario& s, Random& random) {
  t.world = std::move(set);
  const TensorWorld world = s.world_of(t);
  t.root_rank = Rank(static_cast<std::uint32_t>(random.below(world.size())));
  t.root = world.rank_hosts()[t.root_rank.value];
  std::uint64_t unit = 1;
  if (t.operation == Operation::kAllgather || exchanges(t.operation)) unit = world.size();
  if (t.operation == Operation::kAlltoall) unit *= 2;
  t.elements = t.elements / unit * unit;
  t.fp32_contributions = reduces(t.operation) && dtype_size(t.dtype) == 2 && world.size() > world.hosts();
}

}  // namespace

void random_sets(Scenario& s) {
  Random random(mix(s.seed) ^ kOfProcessSets);
  if (s.plan.rank_hosts.size() == 1 || !random.chance(kJobsWithSets)) return;
  std::vector<SharedWorld> sets;
  for (std::uint64_t left = random.between(1, 3); left > 0; --left) sets.push_back(random_set(s, random));
  SharedWorld set;
  bool any = false;
  for (std::uint32_t i = 0, group = 0, before = 0; i < s.plan.tensors.size(); ++i) {
    PlanTensor& t = s.plan.tensors[i];
    const bool begins = i == 0 || t.group != before || random.chance(0.3);
    before = t.group;
    if (begins) set = random.chance(kGroupsOfSets) ? sets[random.below(sets.size())] : nullptr;
    if (begins && i > 0) ++group;
    t.group = group;
    if (set == nullptr) continue;
    give_to(t, set, s, random);
    any = true;
  }
  // Ranks of different sets have different programs.
  if (any) s.client.in_step = false;
}

}  // namespace tensorlane::simulator
