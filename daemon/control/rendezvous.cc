#include "daemon/control/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/base/assert.h"
#include "common/protocol/session.h"
#include "daemon/control/message.h"
#include "daemon/ports/reducer.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxAddress = 255;  // the longest name that DNS knows

std::string process_text(const Claim& claim, const std::string& host) {
  return fmt::format("process {} on host {}", claim.pid, host);
}

}  // namespace

std::optional<std::size_t> Roster::index_of(std::string_view host) const {
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i].name == host) return i;
  }
  return std::nullopt;
}

std::size_t Roster::index_of_rank(std::uint32_t rank) const {
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (std::binary_search(hosts[i].ranks.begin(), hosts[i].ranks.end(), rank)) return i;
  }
  return 0;
}

Status Gathering::bad(std::string what, const std::string& host, std::string fix) const {
  return Status(Code::kInvalidArgument, std::move(what), fmt::format("job '{}' on host {}", job_, host),
                std::move(fix));
}

Status Gathering::check_claims(const std::string& host, const std::vector<Claim>& claims) const {
  const Claim& first = claims.front();
  std::map<std::uint32_t, const Claim*> by_rank, by_local_rank;
  for (const Claim& c : claims) {
    if (c.world_size == 0 || c.world_size > kMaxWorldSize) {
      return bad(fmt::format("world size {} of rank {} is not between 1 and {}", c.world_size, c.rank, kMaxWorldSize),
                 host, "set WORLD_SIZE");
    }
    if (c.rank >= c.world_size) {
      return bad(fmt::format("rank {} is outside of world size {}", c.rank, c.world_size), host,
                 "set RANK to 0 up to WORLD_SIZE - 1");
    }
    if (c.local_world_size == 0 || c.local_world_size > c.world_size || c.local_rank >= c.local_world_size) {
      return bad(fmt::format("rank {} has local rank {} of local world size {} and world size {}", c.rank, c.local_rank,
                             c.local_world_size, c.world_size),
                 host, "set LOCAL_RANK to 0 up to LOCAL_WORLD_SIZE - 1, and that to at most WORLD_SIZE");
    }
    if (c.local_world_size > ports::kMaxLocalRanks) {
      return {Code::kResourceExhausted,
              fmt::format("local world size {} of rank {}: a host has at most {} ranks of a job", c.local_world_size,
                          c.rank, ports::kMaxLocalRanks),
              fmt::format("job '{}' on host {}", job_, host), "start fewer processes on each host"};
    }
    if (c.world_size != first.world_size) {
      return bad(fmt::format("world sizes differ: rank {} says {}, rank {} says {}", first.rank, first.world_size,
                             c.rank, c.world_size),
                 host, "give every rank the same WORLD_SIZE");
    }
    if (c.local_world_size != first.local_world_size) {
      return bad(fmt::format("local world sizes differ: rank {} says {}, rank {} says {}", first.rank,
                             first.local_world_size, c.rank, c.local_world_size),
                 host, "give every rank of a host the same LOCAL_WORLD_SIZE");
    }
    if (const auto [other, fresh] = by_rank.emplace(c.rank, &c); !fresh) {
      return bad(fmt::format("rank {} comes twice: from {} and from {}", c.rank, process_text(*other->second, host),
                             process_text(c, host)),
                 host, "give every process a RANK of its own");
    }
    if (const auto [other, fresh] = by_local_rank.emplace(c.local_rank, &c); !fresh) {
      return bad(fmt::format("local rank {} comes twice: from rank {} and from rank {}", c.local_rank,
                             other->second->rank, c.rank),
                 host, "give every process of a host a LOCAL_RANK of its own");
    }
  }
  return {};
}

Status Gathering::check_order(const std::string& host, const std::vector<Claim>& claims) const {
  if (claims.size() != claims.front().local_world_size) return {};
  std::vector<Claim> sorted = claims;
  std::sort(sorted.begin(), sorted.end(), [](const Claim& a, const Claim& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].local_rank == i) continue;
    return bad(fmt::format("rank {} has local rank {} but is number {} by rank among the host's ranks", sorted[i].rank,
                           sorted[i].local_rank, i),
               host, "number local ranks in the order of ranks, as torchrun does");
  }
  return {};
}

Status Gathering::check_against_others(const std::string& host, const std::vector<Claim>& claims) const {
  for (const auto& [other_host, others] : hosts_) {
    if (other_host == host) continue;
    const Claim& first = others.front();
    if (first.world_size != claims.front().world_size) {
      return bad(fmt::format("world sizes differ: rank {} on host {} says {}, rank {} on host {} says {}", first.rank,
                             other_host, first.world_size, claims.front().rank, host, claims.front().world_size),
                 host, "give every rank the same WORLD_SIZE");
    }
    for (const Claim& c : claims) {
      const auto other = std::lower_bound(others.begin(), others.end(), c,
                                          [](const Claim& a, const Claim& b) { return a.rank < b.rank; });
      if (other != others.end() && other->rank == c.rank) {
        return bad(fmt::format("rank {} comes twice: from {} and from {}", c.rank, process_text(*other, other_host),
                               process_text(c, host)),
                   host, "give every process a RANK of its own");
      }
    }
  }
  return {};
}

// A world that is full while some host still waits for local ranks can never become complete.
Status Gathering::check_total(const std::string& host, const std::vector<Claim>& claims) const {
  std::size_t total = claims.size();
  for (const auto& [name, others] : hosts_) total += name == host ? 0 : others.size();
  if (total < claims.front().world_size) return {};
  const auto check = [&](const std::string& name, const std::vector<Claim>& of_host) -> Status {
    if (of_host.size() == of_host.front().local_world_size) return {};
    return bad(fmt::format("all {} ranks have come, but host {} has {} of the {} that LOCAL_WORLD_SIZE says", total,
                           name, of_host.size(), of_host.front().local_world_size),
               host, "set LOCAL_WORLD_SIZE to the number of ranks on the host");
  };
  TL_RETURN_IF_ERROR(check(host, claims));
  for (const auto& [name, others] : hosts_) {
    if (name != host) TL_RETURN_IF_ERROR(check(name, others));
  }
  return {};
}

Status Gathering::arrive(const std::string& host, const std::vector<Claim>& claims) {
  if (claims.empty()) return bad("no rank", host, "start ranks");
  TL_RETURN_IF_ERROR(check_claims(host, claims));
  TL_RETURN_IF_ERROR(check_order(host, claims));
  TL_RETURN_IF_ERROR(check_against_others(host, claims));
  TL_RETURN_IF_ERROR(check_total(host, claims));
  std::vector<Claim> sorted = claims;
  std::sort(sorted.begin(), sorted.end(), [](const Claim& a, const Claim& b) { return a.rank < b.rank; });
  world_size_ = sorted.front().world_size;
  hosts_[host] = std::move(sorted);
  return {};
}

bool Gathering::complete() const {
  std::size_t total = 0;
  for (const auto& [name, claims] : hosts_) total += claims.size();
  return total > 0 && total == world_size_;
}

std::vector<std::uint32_t> Gathering::missing() const {
  std::set<std::uint32_t> here;
  for (const auto& [name, claims] : hosts_) {
    for (const Claim& c : claims) here.insert(c.rank);
  }
  std::vector<std::uint32_t> result;
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    if (!here.contains(rank)) result.push_back(rank);
  }
  return result;
}

std::string Gathering::arrived_text() const {
  std::string text;
  for (const auto& [name, claims] : hosts_) {
    std::vector<std::uint32_t> ranks;
    for (const Claim& c : claims) ranks.push_back(c.rank);
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, ranks_text(ranks));
  }
  return text;
}

Roster Gathering::roster() const {
  TL_ASSERT(complete());
  Roster roster;
  roster.world_size = world_size_;
  for (const auto& [name, claims] : hosts_) {
    RosterHost host{name, {}, {}};
    for (const Claim& c : claims) host.ranks.push_back(c.rank);
    roster.hosts.push_back(std::move(host));
  }
  std::sort(roster.hosts.begin(), roster.hosts.end(),
            [](const RosterHost& a, const RosterHost& b) { return a.ranks.front() < b.ranks.front(); });
  return roster;
}

Result<std::string> find_leader(const fabric::Fabric& fabric, const std::string& self, const std::string& job,
                                const std::string& leader, bool all_local) {
  if (all_local) return self;
  if (const fabric::Host* host = fabric.find_host_by_name_or_address(leader)) return host->name;
  std::string known;
  for (const fabric::Host& host : fabric.hosts) {
    const std::string* address = host.find_address("tcp");
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", host.name, address ? *address : "no address");
  }
  return Status(Code::kInvalidArgument, fmt::format("MASTER_ADDR '{}' is not a host of the fabric", leader),
                fmt::format("job '{}' on host {}, {}", job, self, fabric.path),
                fmt::format("set MASTER_ADDR to one of {}", known));
}

Status add_endpoints(const fabric::Fabric& fabric, const std::string& job, Roster* roster) {
  for (RosterHost& member : roster->hosts) {
    const fabric::Host* host = fabric.find_host(member.name);
    TL_ASSERT(host != nullptr);
    if (const auto tcp = host->addresses.find("tcp"); tcp != host->addresses.end()) member.addresses = tcp->second;
    const RosterHost& first = roster->hosts.front();
    if (member.addresses.size() == first.addresses.size()) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("host '{}' has {} tcp addresses, one for each rail, and host '{}' has {}", first.name,
                              first.addresses.size(), member.name, member.addresses.size()),
                  fmt::format("job '{}', {}:{}", job, fabric.path, host->line),
                  "give all hosts of a job the same number of rails");
  }
  return {};
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMaxRuns = 16;  // enough to act on; the text must fit an error message
  std::string text;
  std::size_t runs = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (runs++ == kMaxRuns) {
      text += fmt::format(" and {} more", ranks.size() - i);
      break;
    }
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string ranks_have_text(const Roster& roster, const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMaxHosts = 8;  // enough to act on; the text must fit an error message
  std::map<std::size_t, std::vector<std::uint32_t>> by_host;
  for (const std::uint32_t rank : ranks) by_host[roster.index_of_rank(rank)].push_back(rank);
  std::string text;
  std::size_t named = 0;
  for (const auto& [host, of_host] : by_host) {
    if (named++ == kMaxHosts && by_host.size() > kMaxHosts + 1) {
      text += fmt::format(" and those of {} more hosts", by_host.size() - kMaxHosts);
      break;
    }
    text += fmt::format("{}{} on host {}", text.empty() ? "" : ", ", ranks_text(of_host), roster.hosts[host].name);
  }
  return text + (ranks.size() == 1 ? " has" : " have");
}

json claims_to_json(const std::vector<Claim>& claims) {
  json array = json::array();
  for (const Claim& c : claims)
    array.push_back(json::array({c.rank, c.world_size, c.local_rank, c.local_world_size, c.pid}));
  return array;
}

std::optional<std::vector<Claim>> claims_from_json(const json& array) {
  if (array.size() > kMaxWorldSize) return std::nullopt;
  std::vector<Claim> claims;
  for (const json& item : array) {
    ItemReader in(item);
    Claim c;
    c.rank = in.u32();
    c.world_size = in.u32();
    c.local_rank = in.u32();
    c.local_world_size = in.u32();
    c.pid = in.u32();
    if (!in.done()) return std::nullopt;
    claims.push_back(c);
  }
  return claims;
}

json roster_to_json(const Roster& roster) {
  json array = json::array();
  for (const RosterHost& host : roster.hosts) array.push_back(json::array({host.name, host.ranks, host.addresses}));
  return array;
}

std::optional<Roster> roster_from_json(std::uint32_t world_size, const json& array) {
  Roster roster;
  roster.world_size = world_size;
  std::set<std::uint32_t> seen;
  for (const json& item : array) {
    ItemReader in(item);
    RosterHost host;
    host.name = in.text(protocol::kMaxName);
    ItemReader ranks(in.array());
    ItemReader addresses(in.array());
    if (!in.done()) return std::nullopt;
    while (addresses.ok() && !addresses.done() && host.addresses.size() <= kMaxRails)
      host.addresses.push_back(addresses.text(kMaxAddress));
    const std::size_t rails = roster.hosts.empty() ? host.addresses.size() : roster.hosts.front().addresses.size();
    if (!addresses.ok() || !addresses.done() || rails == 0 || rails > kMaxRails || host.addresses.size() != rails)
      return std::nullopt;
    while (ranks.ok() && !ranks.done()) {
      const std::uint32_t rank = ranks.u32();
      if (rank >= world_size || !seen.insert(rank).second || (!host.ranks.empty() && host.ranks.back() > rank))
        return std::nullopt;
      host.ranks.push_back(rank);
    }
    if (!ranks.ok() || host.ranks.empty() || roster.index_of(host.name)) return std::nullopt;
    roster.hosts.push_back(std::move(host));
  }
  if (world_size == 0 || seen.size() != world_size) return std::nullopt;
  return roster;
}

}  // namespace tensorlane::control
