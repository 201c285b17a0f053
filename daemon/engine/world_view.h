// The ranks and hosts that an operation on a tensor is among, as the engine of one host sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"

namespace tensorlane::engine {

// Hosts are counted as in the tensor's world; host() says which of the job's each is. Refers to what it is made of.
struct WorldView {
  WorldView(std::uint16_t job_hosts, std::uint32_t job_size, const Plan& plan, const PlanTensor& tensor)
      : world(tensor.world.get()),
        size(world == nullptr ? job_size : world->size()),
        hosts(world == nullptr ? job_hosts : world->hosts()),
        rank_hosts(world == nullptr ? std::span<const HostIndex>(plan.rank_hosts) : world->places().rank_hosts()) {}
  WorldView(const EngineConfig& config, const Plan& plan, const PlanTensor& tensor)
      : WorldView(config.hosts, config.world_size, plan, tensor) {}

  HostIndex host(HostIndex place) const { return world == nullptr ? place : world->host(place); }
  // Nothing where the host has no part in the tensor.
  std::optional<HostIndex> place_of(HostIndex host) const { return world == nullptr ? host : world->place_of(host); }

  const protocol::World* world;  // none: all of the job
  std::uint32_t size;            // ranks
  std::uint16_t hosts;
  std::span<const HostIndex> rank_hosts;  // by rank; empty where the plan does not say
};

}  // namespace tensorlane::engine
