#include "client-lib/src/process_set.h"

#include <algorithm>
#include <span>

#include "client-lib/src/settings.h"
#include "common/base/hash.h"
#include "common/protocol/session.h"

namespace tensorlane::client {
namespace {

constexpr std::size_t kLongestList = 64;  // characters of ranks in names and messages

Status refused(const std::string& why, const std::string& fix) {
  return {Code::kInvalidArgument, "there can be no such process set", why, fix};
}

std::string list_of(const std::vector<std::uint32_t>& ranks, const char* between) {
  std::string list;
  for (const std::uint32_t rank : ranks) {
    if (!list.empty()) list += between;
    list += std::to_string(rank);
    if (list.size() > kLongestList) break;
  }
  return list;
}

// Names of sets with one number differ by this.
std::string mark_of(const std::vector<std::uint32_t>& ranks) {
  std::string list = list_of(ranks, "-");
  if (list.size() <= kLongestList) return list;
  Fnv1a hash;
  for (const std::uint32_t rank : ranks) hash.add(rank);
  return std::to_string(ranks.size()) + "." + std::to_string(hash.value());
}

}  // namespace

ProcessSet::ProcessSet(const Settings& settings)
    : rank(settings.rank),
      world_size(settings.world_size),
      local_rank(settings.local_rank),
      local_world_size(settings.local_world_size),
      text_("job '" + settings.job + "'") {}

Result<SharedSet> ProcessSet::make(const tl_process_set_config_t& config, const Settings& settings) {
  if (config.ranks == nullptr || config.count == 0) return refused("it has no ranks", "list each rank of the set once");
  if (config.count > protocol::kMaxSetRanks) {
    return refused("it has " + std::to_string(config.count) + " ranks",
                   "the limit is " + std::to_string(protocol::kMaxSetRanks));
  }
  if (config.number == 0 || config.number > protocol::kMaxSetNumber) {
    return refused("its number is " + std::to_string(config.number),
                   "use 1 to " + std::to_string(protocol::kMaxSetNumber));
  }
  std::shared_ptr<ProcessSet> set(new ProcessSet());
  for (const int rank : std::span(config.ranks, config.count)) {
    if (rank < 0 || static_cast<std::uint32_t>(rank) >= settings.world_size) {
      return refused("the job has no rank " + std::to_string(rank),
                     "use ranks below the world size " + std::to_string(settings.world_size));
    }
    if (!set->ranks_.empty() && set->ranks_.back() >= static_cast<std::uint32_t>(rank))
      return refused("rank " + std::to_string(rank) + " is not behind the one before", "list ranks in ascending order");
    set->ranks_.push_back(static_cast<std::uint32_t>(rank));
  }
  const auto self = std::ranges::find(set->ranks_, settings.rank);
  if (self == set->ranks_.end()) {
    return refused("rank " + std::to_string(settings.rank) + " is not one of " + list_of(set->ranks_, ", "),
                   "leave the call out on ranks that are not in the set");
  }
  set->number_ = config.number;
  set->rank = static_cast<std::uint32_t>(self - set->ranks_.begin());
  set->world_size = static_cast<std::uint32_t>(config.count);
  if (config.local_size >= 0) set->local_world_size = static_cast<std::uint32_t>(config.local_size);
  if (config.local_rank >= 0) set->local_rank = static_cast<std::uint32_t>(config.local_rank);
  if (set->local_world_size == 0 || set->local_world_size > set->world_size || set->local_rank >= set->local_world_size)
    return refused(
        "its local rank is " + std::to_string(config.local_rank) + " of " + std::to_string(config.local_size),
        "count the ranks of the set on this host");
  set->prefix_ = "set" + std::to_string(config.number) + "." + mark_of(set->ranks_) + "/";
  set->text_ = "process set " + std::to_string(config.number) + " (ranks " + list_of(set->ranks_, ", ") + ") of job '" +
               settings.job + "'";
  return SharedSet(std::move(set));
}

SharedSet ProcessSet::part(const ProcessSet& set, std::span<const std::uint32_t> ranks, Part part,
                           const Settings& settings) {
  std::shared_ptr<ProcessSet> made(new ProcessSet());
  for (const std::uint32_t rank : ranks) {
    if (rank == set.rank) made->rank = static_cast<std::uint32_t>(made->ranks_.size());
    made->ranks_.push_back(set.rank_in_job(rank));
  }
  static_assert(kNoNumber == protocol::kMaxSetNumber);
  made->number_ = kNoNumber + 1;
  made->part_ = part;
  made->whole_ = set.number_;
  made->world_size = static_cast<std::uint32_t>(made->ranks_.size());
  if (part == Part::kHost) {
    made->local_world_size = made->world_size;
    made->local_rank = made->rank;
  }
  // Parts differ in their ranks: a host's and one across hosts have two or more, and just one of them in common.
  made->prefix_ = set.prefix_ + "gpus." + mark_of(made->ranks_) + "/";
  made->text_ = "ranks " + list_of(made->ranks_, ", ") + " of job '" + settings.job + "'";
  return made;
}

std::uint32_t ProcessSet::rank_in_set(std::uint32_t rank_in_job) const {
  if (ranks_.empty()) return rank_in_job;
  return static_cast<std::uint32_t>(std::ranges::lower_bound(ranks_, rank_in_job) - ranks_.begin());
}

}  // namespace tensorlane::client
