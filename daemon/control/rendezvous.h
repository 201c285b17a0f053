// Who takes part in a job: what each rank claims of itself, gathered until the world is complete. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"

namespace tensorlane::control {

inline constexpr std::uint32_t kMaxWorldSize = 65536;

// What a rank says of itself (torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE).
struct Claim {
  std::uint32_t rank = 0, world_size = 0, local_rank = 0, local_world_size = 0;
  std::uint32_t pid = 0;  // of its process, for messages
};

struct RosterHost {
  std::string name;
  std::vector<std::uint32_t> ranks;    // ascending; position = local rank
  std::vector<std::string> addresses;  // of its data flows, by rail; those of the leader's fabric file count for all
};

// A complete world. Position in `hosts` = HostIndex: by lowest rank.
struct Roster {
  std::uint32_t world_size = 0;
  std::vector<RosterHost> hosts;

  std::optional<std::size_t> index_of(std::string_view host) const;
  // Position of the host of a rank; 0 for a rank that is not there (callers check against world_size).
  std::size_t index_of_rank(std::uint32_t rank) const;
  const std::string& host_of(std::uint32_t rank) const { return hosts[index_of_rank(rank)].name; }
};

// The ranks of one job as they come, by host.
class Gathering {
 public:
  explicit Gathering(std::string job) : job_(std::move(job)) {}

  // All claims of `host` so far; replaces what was known of it. Errors leave the gathering as it was: kInvalidArgument,
  // with a text that names both sides: a rank or local rank that comes twice, world sizes that differ, numbers out of
  // range, local ranks out of order.
  Status arrive(const std::string& host, const std::vector<Claim>& claims);
  // The host's daemon has started anew: what it said before does not count.
  void forget(const std::string& host) { hosts_.erase(host); }
  bool complete() const;
  std::vector<std::uint32_t> missing() const;  // of the world, ascending
  std::string arrived_text() const;            // "h0 (ranks 0-1), h1 (rank 3)"
  std::uint32_t world_size() const { return world_size_; }
  Roster roster() const;  // of a complete gathering

 private:
  Status check_claims(const std::string& host, const std::vector<Claim>& claims) const;
  Status check_order(const std::string& host, const std::vector<Claim>& claims) const;
  Status check_against_others(const std::string& host, const std::vector<Claim>& claims) const;
  Status check_total(const std::string& host, const std::vector<Claim>& claims) const;
  Status bad(std::string what, const std::string& host, std::string fix) const;

  std::string job_;
  std::uint32_t world_size_ = 0;
  std::map<std::string, std::vector<Claim>> hosts_;  // claims by rank, ascending
};

// The host that leads the job: the one whose name or address MASTER_ADDR holds; `self` when every rank is local,
// whatever MASTER_ADDR says (it is often a loopback address then). Error: kInvalidArgument that lists the hosts of the
// fabric.
Result<std::string> find_leader(const fabric::Fabric& fabric, const std::string& self, const std::string& job,
                                const std::string& leader, bool all_local);

// Gives every host of the roster its endpoints. Error: kInvalidArgument, names two hosts with different numbers of
// rails. Every host is in the fabric file.
Status add_endpoints(const fabric::Fabric& fabric, const std::string& job, Roster* roster);

// "rank 3", "ranks 0-1, 4": ascending numbers as people write them.
std::string ranks_text(const std::vector<std::uint32_t>& ranks);
// "rank 3 on host h1 has", "rank 1 on host h1, ranks 2-3 on host h2 have": the beginning of a sentence about ranks of
// this world; at least one, ascending.
std::string ranks_have_text(const Roster& roster, const std::vector<std::uint32_t>& ranks);

nlohmann::json claims_to_json(const std::vector<Claim>& claims);
std::optional<std::vector<Claim>> claims_from_json(const nlohmann::json& array);
nlohmann::json roster_to_json(const Roster& roster);
// Nothing when malformed: no hosts, a rank out of range, twice or missing, a host without rails, with too many or with
// other than the first one's number.
std::optional<Roster> roster_from_json(std::uint32_t world_size, const nlohmann::json& array);

}  // namespace tensorlane::control
