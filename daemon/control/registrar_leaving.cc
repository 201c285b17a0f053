// Groups that ranks unregister. Every rank asks; the leader counts them, and takes the group out of the plan in two
// phases, as it came in (registrar.h).
#include <fmt/format.h>

#include <algorithm>

#include "daemon/control/registrar.h"

namespace tensorlane::control {

using nlohmann::json;
using protocol::PlanTensor;
using protocol::SharedWorld;

void Registrar::unregister_group(std::uint32_t rank, ports::SessionId session, std::uint32_t request,
                                 const std::string& group, std::uint64_t operations, Duration patience) {
  const std::string where = group_where(config_.job, group);
  const auto known = groups_.find(group);
  const auto leaving = leaving_.find(group);
  const auto gone = for_good_.find(group);
  // A group that is on its way out is this rank's until it has been let go.
  const bool asked_before = leaving != leaving_.end() && leaving->second.contains(rank);
  const bool is_gone = gone != for_good_.end() && gone->second.contains(rank);
  if (known == groups_.end() || !has(known->second.world, rank) || is_gone ||
      (!known->second.active && !asked_before)) {
    return output_.answer_unregistered(session, request,
                                       Status(Code::kNotFound, fmt::format("rank {} has no such group", rank), where,
                                              "unregister what is registered, once"));
  }
  if (patience == ports::kForGood) return leave_for_good(rank, session, request, group, operations);
  if (leaving == leaving_.end() && leaving_.size() >= kMaxPendingGroups) {
    return output_.answer_unregistered(
        session, request,
        Status(Code::kResourceExhausted, fmt::format("{} groups wait to be unregistered", leaving_.size()), where,
               "wait for one before the next"));
  }
  const auto [asked, first] = leaving_[group].try_emplace(rank, LeavingRank{session, request});
  if (first) {
    return output_.to_leader(MessageType::kUnregister, json::array({group, rank, operations, patience.value, false}));
  }
  // A client that did not wait for the answer to its first question: the last one gets it.
  output_.answer_unregistered(asked->second.session, std::exchange(asked->second.request, request),
                              Status(Code::kAlreadyExists, "the rank has asked again", where, "wait for the answer"));
}

// Nothing of the group is under way here, and nothing will be: the rank's buffers are its own again at once.
void Registrar::leave_for_good(std::uint32_t rank, ports::SessionId session, std::uint32_t request,
                               const std::string& group, std::uint64_t operations) {
  for_good_[group].insert(rank);
  output_.to_leader(MessageType::kUnregister, json::array({group, rank, operations, 0, true}));
  const auto tensors = tensors_in(groups_.at(group).range);
  output_.answer_unregistered(
      session, request,
      static_cast<std::uint32_t>(tensors.size() - std::ranges::count_if(tensors, &PlanTensor::is_batch)));
}

bool Registrar::has_left_for_good(std::uint32_t rank, TensorId tensor) const {
  return std::ranges::any_of(for_good_, [&](const auto& leaving) {
    const auto& [group, ranks] = leaving;
    const auto known = groups_.find(group);
    return ranks.contains(rank) && known != groups_.end() && known->second.range.contains(tensor);
  });
}

// ---- the leader ----

bool Registrar::handle_unregister(const std::string& from, const json& body, Time now) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::uint32_t rank = in.u32();
  const std::uint64_t operations = in.number(~std::uint64_t{0});
  const Duration patience(static_cast<std::int64_t>(in.number(kMostPatience)));
  const bool for_good = in.boolean();
  const auto known = groups_.find(group);
  if (!in.done() || rank >= config_.roster.world_size || config_.roster.host_of(rank) != from) return false;
  if (known != groups_.end() && !has(known->second.world, rank)) return false;
  const auto is_it = [&](const Change& change) { return change.leaves && change.group == group; };
  if (known == groups_.end() || !known->second.active || std::ranges::any_of(changes_, is_it)) return false;
  const auto [it, fresh] = departures_.try_emplace(group);
  Departure& departure = it->second;
  if (fresh) departure.since = now;
  departure.arrived[rank] = operations;
  if (for_good) departure.for_good.insert(rank);
  // So that the error which names the others reaches who is the first to give up.
  if (patience.value > 0) {
    const Time deadline = now + Duration(patience.value / 10 * 9);
    departure.deadline = departure.deadline == Time() ? deadline : std::min(departure.deadline, deadline);
  }
  if (departure.arrived.size() == size_of(known->second.world)) {
    finish_departure(group);
  } else {
    look_if_left(group);
  }
  return true;
}

// A rank that has completed another number of operations would go on from another sequence.
void Registrar::finish_departure(const std::string& group) {
  const Departure& departure = departures_.at(group);
  const auto& [reference, operations] = *departure.arrived.begin();
  for (const auto& [rank, others] : departure.arrived) {
    if (others == operations) continue;
    return reject(
        group, Status(Code::kMismatch,
                      fmt::format("rank {} has completed {} operations on its tensors, rank {} {}", reference,
                                  operations, rank, others),
                      group_where(config_.job, group), "run the same operations on every rank before they unregister"));
  }
  if (const Status counted = count_operations(group, operations); !counted.ok()) return reject(group, counted);
  departures_.erase(group);
  Change change{.group = group, .leaves = true};
  for (const RosterHost& host : config_.roster.hosts) change.waiting.insert(host.name);
  changes_.push_back(std::move(change));
  if (changes_.size() == 1) start_next_change();
}

// What comes to be in the places of the group goes on from there. No tensor of it has had more operations than all
// together, and hosts without a part in the group have counted none.
Status Registrar::count_operations(const std::string& group, std::uint64_t operations) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 38;
  const protocol::TensorRange range = groups_.at(group).range;
  if (bases_.size() < range.end()) bases_.resize(range.end());
  const auto places = std::span(bases_).subspan(range.first, range.count);
  if (operations > kMost || std::ranges::any_of(places, [&](std::uint64_t b) { return b + operations > kMost; })) {
    return Status(Code::kResourceExhausted, fmt::format("{} operations are too many to count on from", operations),
                  group_where(config_.job, group), "leave it registered until the end of the job");
  }
  for (std::uint64_t& base : places) base += operations;
  return {};
}

// Those who ask later begin anew, beside those who do not come back.
void Registrar::reject(const std::string& group, const Status& status) {
  auto node = departures_.extract(group);
  Departure& departure = node.mapped();
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, operations] : departure.arrived) {
    if (!departure.for_good.contains(rank)) ranks.push_back(rank);
  }
  std::erase_if(departure.arrived, [&](const auto& one) { return !departure.for_good.contains(one.first); });
  departure.deadline = Time();
  if (ranks.empty()) return output_.fail_job(status);  // it would stay for ever
  if (!departure.arrived.empty()) departures_.insert(std::move(node));
  output_.to_all_hosts(MessageType::kStays, json::array({group, ranks, status_to_json(status)}));
}

// Where some ranks have left the job: a group to which no other comes back leaves the plan, a group that others wait
// for stays.
void Registrar::look_if_left(const std::string& group) {
  const Departure& departure = departures_.at(group);
  const SharedWorld world = groups_.at(group).world;
  const std::vector<std::uint32_t> ranks = missing(departure, world);
  const bool all_gone = std::ranges::all_of(ranks, [&](std::uint32_t rank) { return left_.contains(rank); });
  if (all_gone && departure.for_good.size() == departure.arrived.size()) return finish_departure(group);
  if (departure.for_good.size() == departure.arrived.size()) return;
  for (const std::uint32_t rank : left_) {
    if (!has(world, rank) || departure.arrived.contains(rank)) continue;
    return reject(group, Status(Code::kAborted,
                                fmt::format("rank {} on host {} has left the job and did not unregister it", rank,
                                            config_.roster.host_of(rank)),
                                group_where(config_.job, group), "let every rank unregister before any leaves"));
  }
}

void Registrar::reject_departures_without(std::uint32_t rank) {
  for (auto it = departures_.begin(); it != departures_.end();) {
    const std::string group = (it++)->first;
    if (!departures_.at(group).arrived.contains(rank)) look_if_left(group);
  }
}

// A job may have many of them. The first few that are due speak for all, since a rank is late with every one.
void Registrar::tick_departures(Time now) {
  constexpr std::size_t kMostReported = 16;
  if (now < next_look_) return;
  next_look_ = now + milliseconds(20);
  if (now >= reported_until_) {
    reported_ = 0;
    reported_until_ = now + config_.stall_warning;
  }
  for (auto it = departures_.begin(); it != departures_.end();) {
    auto& [group, departure] = *it++;  // reject() takes it out
    const Duration waited = now - departure.since;
    const bool somebody_waits = departure.for_good.size() < departure.arrived.size();
    const bool too_long = (somebody_waits && waited >= config_.stall_error) ||
                          (departure.deadline != Time() && now >= departure.deadline);
    const bool due =
        somebody_waits && reported_ < kMostReported && waited >= departure.reported + config_.stall_warning;
    if (!too_long && !due) continue;
    departure.reported = waited;
    const std::vector<std::uint32_t> ranks = missing(departure, groups_.at(group).world);
    if (too_long) {
      reject(group, Status(Code::kTimedOut,
                           fmt::format("{} not unregistered after {:.1f} s", ranks_have_text(config_.roster, ranks),
                                       to_seconds(waited)),
                           group_where(config_.job, group), "let every rank unregister the same groups"));
      continue;
    }
    ++reported_;
    for (const std::uint32_t rank : ranks)
      output_.report_late(rank, fmt::format("group '{}', which others unregister", group), waited);
  }
}

// ---- every host ----

bool Registrar::handle_vacate(const json& body) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::uint32_t version = in.u32();
  const std::uint64_t hash = in.number(~std::uint64_t{0});
  const auto known = groups_.find(group);
  if (!in.done() || version != plan_.version + 1 || known == groups_.end() || !known->second.active) return false;
  Group& leaves = known->second;
  for (const PlanTensor& tensor : tensors_in(leaves.range)) {
    if (tensor.is_batch()) continue;
    names_.erase(tensor.name);
    ++leaves.left;
  }
  leaves.active = false;
  take_out_of_plan(leaves.range);
  plan_.version = version;
  totals_.hash = hash_.value(plan_);
  output_.note(fmt::format("job '{}': plan version {} without the {} tensors of group '{}', hash {:016x}", config_.job,
                           version, leaves.left, group, totals_.hash));
  if (check_hash(hash)) output_.vacate(version, leaves.range);
  return true;
}

void Registrar::take_out_of_plan(protocol::TensorRange range) {
  for (const PlanTensor& tensor : tensors_in(range)) {
    hash_.remove(tensor);
    if (tensor.is_batch()) --totals_.batches;
    if (tensor.in_batch()) --totals_.batched;
  }
  totals_.tensors -= range.count;
  plan_.vacate(range);
}

// The group is out of the plan of every host.
void Registrar::let_go(const std::string& group) {
  const auto gone = groups_.extract(group);
  for_good_.erase(group);
  const auto asked = leaving_.extract(group);
  if (asked.empty()) return;
  for (const auto& [rank, who] : asked.mapped())
    output_.answer_unregistered(who.session, who.request, gone.mapped().left);
}

bool Registrar::handle_stays(const json& body) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  ItemReader ranks(in.array());
  const Status status = status_from_json(in.array());
  if (!in.done() || status.ok()) return false;
  const auto asked = leaving_.find(group);
  while (asked != leaving_.end() && ranks.ok() && !ranks.done()) {
    const auto who = asked->second.find(ranks.u32());
    if (who == asked->second.end()) continue;  // of another host
    output_.answer_unregistered(who->second.session, who->second.request, status);
    asked->second.erase(who);
  }
  if (asked != leaving_.end() && asked->second.empty()) leaving_.erase(asked);
  return ranks.ok();
}

void Registrar::fail_leaving(const Status& cause) {
  for (const auto& [group, ranks] : std::exchange(leaving_, {})) {
    for (const auto& [rank, who] : ranks) output_.answer_unregistered(who.session, who.request, cause);
  }
  departures_.clear();
}

}  // namespace tensorlane::control
