// The ranks that a tensor's operations are among, as one host sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/protocol/exchange.h"
#include "common/protocol/world.h"
#include "daemon/ports/job.h"

namespace tensorlane::host {

// Of all ranks of a job, or of a process set. Does not change; tensors share it. Local ranks are known by their local
// index, their place among all of the job's ranks here.
class Members {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  // `world`: none, all ranks. Allocates.
  Members(const ports::JobSpec& spec, protocol::SharedWorld world);

  std::uint32_t world_size() const { return places().world_size(); }
  // More than one host has ranks of it.
  bool between_hosts() const { return hosts_ > 1; }
  std::uint16_t hosts() const { return hosts_; }
  // How many of its ranks are here. None: this host has no part in it.
  std::size_t here() const { return locals_.size(); }
  // These, ascending: their local indices, and their numbers in the world.
  const std::vector<std::uint32_t>& locals() const { return locals_; }
  const std::vector<std::uint32_t>& numbers() const { return numbers_; }
  // Where a local index stands among them, or kNone.
  std::uint32_t place_of(std::uint32_t local) const { return place_[local]; }
  // Where the rank with this number in the world does; nothing where it is not here.
  std::optional<std::uint32_t> place_of_number(std::uint32_t number) const;

  // Of a tensor with an exchange; some of its ranks are here.
  protocol::HostExchange exchange(const protocol::Exchange& exchange) const {
    return protocol::HostExchange(exchange, places(), self_);
  }

 private:
  const protocol::RankPlaces& places() const { return world_ != nullptr ? world_->places() : *places_; }

  protocol::SharedWorld world_;
  std::optional<protocol::RankPlaces> places_;  // of all ranks
  HostIndex self_;                              // as the world counts hosts
  std::uint16_t hosts_ = 1;
  std::vector<std::uint32_t> locals_, numbers_, place_;
};

}  // namespace tensorlane::host
