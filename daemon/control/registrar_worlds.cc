// Which ranks a group is of: all of the job, or those of a process set.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "daemon/control/registrar.h"

namespace tensorlane::control {

using protocol::SharedWorld;

bool Registrar::has(const SharedWorld& world, std::uint32_t rank) {
  return world == nullptr || world->rank_of(rank).has_value();
}

std::uint32_t Registrar::size_of(const SharedWorld& world) const {
  return world == nullptr ? config_.roster.world_size : world->size();
}

std::size_t Registrar::ranks_here(const SharedWorld& world) const {
  return static_cast<std::size_t>(std::ranges::count_if(local_ranks_, [&](std::uint32_t r) { return has(world, r); }));
}

// In the order of the hosts of the job.
std::vector<const RosterHost*> Registrar::hosts_of(const SharedWorld& world) const {
  std::vector<const RosterHost*> hosts;
  for (std::uint16_t h = 0; h < config_.roster.hosts.size(); ++h) {
    if (world == nullptr || world->place_of(HostIndex(h))) hosts.push_back(&config_.roster.hosts[h]);
  }
  return hosts;
}

// One object for all groups of the same ranks. Nothing where they are no ranks of the job in ascending order.
std::optional<SharedWorld> Registrar::world_of(const std::vector<std::uint32_t>& ranks) {
  if (ranks.empty()) return SharedWorld();
  if (!std::ranges::is_sorted(ranks, std::less_equal()) || ranks.back() >= config_.roster.world_size)
    return std::nullopt;
  if (worlds_.size() >= worlds_looked_at_) {
    std::erase_if(worlds_, [](const auto& known) { return known.second.expired(); });
    worlds_looked_at_ = std::max<std::size_t>(16, 2 * worlds_.size());
  }
  std::weak_ptr<const protocol::World>& known = worlds_[ranks];
  if (const SharedWorld world = known.lock()) return world;
  std::vector<HostIndex> hosts;
  hosts.reserve(ranks.size());
  for (const std::uint32_t rank : ranks) hosts.push_back(plan_.rank_hosts[rank]);
  const auto world = std::make_shared<const protocol::World>(ranks, hosts);
  known = world;
  return world;
}

nlohmann::json ranks_to_json(const SharedWorld& world) {
  return world == nullptr ? nlohmann::json::array() : nlohmann::json(world->ranks());
}

std::optional<SharedWorld> Registrar::world_from_json(const nlohmann::json& ranks) {
  ItemReader in(ranks);
  std::vector<std::uint32_t> list;
  while (in.ok() && !in.done() && list.size() <= protocol::kMaxSetRanks) list.push_back(in.u32());
  if (!in.ok() || list.size() > protocol::kMaxSetRanks) return std::nullopt;
  return world_of(list);
}

// Of the group, which `rank` registers for a world. Null where others register it for another one: then nobody does.
Registrar::Round* Registrar::round(const std::string& group, const SharedWorld& world, std::uint32_t rank, Time now) {
  const auto under_way = std::ranges::find(changes_, group, &Change::group);
  const auto known = groups_.find(group);
  if (under_way != changes_.end() || known != groups_.end()) {
    const SharedWorld& taken = known != groups_.end() ? known->second.world : under_way->world;
    const std::uint32_t other = taken == nullptr ? 0 : taken->ranks().front();
    reject_registration(group, world, differing(group, other, taken, rank, world));
    return nullptr;
  }
  const auto [it, fresh] = rounds_.try_emplace(group);
  Round& round = it->second;
  if (fresh) {
    round.since = now;
    round.world = world;
  }
  if (is_same(round.world, world)) return &round;
  const SharedWorld other = round.world;
  const Status status = differing(group, *round.arrived.begin(), other, rank, world);
  rounds_.erase(it);
  reject_registration(group, other, status);
  reject_registration(group, world, status);
  return nullptr;
}

Status Registrar::differing(const std::string& group, std::uint32_t rank, const SharedWorld& world,
                            std::uint32_t other_rank, const SharedWorld& other) const {
  const auto text = [](const SharedWorld& of) {
    return of == nullptr ? std::string("all ranks") : ranks_text(of->ranks());
  };
  return {Code::kMismatch,
          fmt::format("rank {} registers it for {}, rank {} for {}", rank, text(world), other_rank, text(other)),
          group_where(config_.job, group), "give every process set group names of its own"};
}

// Of those who register it for this world: nobody does.
void Registrar::reject_registration(const std::string& group, const SharedWorld& world, const Status& status) {
  output_.to_all_hosts(MessageType::kRejected,
                       nlohmann::json::array({group, ranks_to_json(world), status_to_json(status)}));
}

}  // namespace tensorlane::control
