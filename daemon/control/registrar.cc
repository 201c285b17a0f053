#include "daemon/control/registrar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/protocol/exchange.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;
using protocol::PlanTensor;
using protocol::SharedWorld;
using protocol::TensorBody;

constexpr std::size_t kPlanHead = 256;  // bytes of a plan's message beside its tensors and the group's name

// "h1, h2"
std::string listed(const std::set<std::string>& hosts) {
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? "" : ", ") + host;
  return text;
}

}  // namespace

Registrar::Registrar(RegistrarConfig config, RegistrarOutput& output)
    : config_(std::move(config)), output_(output), plan_(empty_plan()), hash_(plan_) {
  local_ranks_ = config_.roster.hosts[*config_.roster.index_of(config_.self)].ranks;
  totals_.hash = hash_.value(plan_);
}

protocol::Plan Registrar::empty_plan() const {
  const auto self = config_.roster.index_of(config_.self);
  TL_ASSERT(self.has_value());
  protocol::Plan plan;
  plan.rails = static_cast<std::uint8_t>(std::max<std::size_t>(config_.roster.hosts[*self].addresses.size(), 1));
  for (std::uint32_t rank = 0; rank < config_.roster.world_size; ++rank) {
    plan.rank_hosts.push_back(HostIndex(static_cast<std::uint16_t>(config_.roster.index_of_rank(rank))));
  }
  return plan;
}

void Registrar::refuse(const LocalRank& local, Status status) {
  output_.answer(local.session, local.request, std::move(status));
}

void Registrar::register_group(std::uint32_t rank, ports::SessionId session, std::uint32_t request,
                               const std::string& group, std::vector<TensorBody> tensors,
                               const std::vector<std::uint32_t>& ranks) {
  LocalRank local{{rank, std::move(tensors)}, session, request};
  const std::string where = group_where(config_.job, group);
  const std::optional<SharedWorld> world = world_of(ranks);
  if (!world || !has(*world, rank)) {
    return refuse(local, Status(Code::kInvalidArgument,
                                fmt::format("rank {} registers for a process set that it is not in", rank), where,
                                "list ranks of the job in ascending order, this one among them"));
  }
  const Status status = check_group(config_.job, group, local.group, size_of(*world));
  if (!status.ok()) return refuse(local, status);
  if (groups_.contains(group)) {
    return refuse(local, Status(Code::kAlreadyExists, fmt::format("the group is registered already (rank {})", rank),
                                where, "use another group name"));
  }
  if (json::to_cbor(tensors_to_json(local.group.tensors)).size() > kMaxGroupBytes) {
    return refuse(local, Status(Code::kResourceExhausted,
                                fmt::format("{} tensors take more than {} bytes to describe",
                                            local.group.tensors.size(), kMaxGroupBytes),
                                where, "register in several groups"));
  }
  if (!local_.contains(group) && local_.size() >= kMaxPendingGroups) {
    return refuse(local, Status(Code::kResourceExhausted, fmt::format("{} groups wait to be registered", local_.size()),
                                where, "wait for one before the next"));
  }
  const auto [at, first] = local_.try_emplace(group, LocalGroup{.world = *world});
  LocalGroup& waiting = at->second;
  if (waiting.ranks.contains(rank)) {
    return refuse(local, Status(Code::kAlreadyExists, fmt::format("rank {} registers the group twice", rank), where,
                                "register it once"));
  }
  if (!is_same(waiting.world, *world))
    return refuse(local, differing(group, waiting.ranks.begin()->first, waiting.world, rank, *world));
  waiting.ranks.emplace(rank, std::move(local));
  if (waiting.ranks.size() == ranks_here(*world)) return send_local_group(group, waiting);
  std::vector<std::uint32_t> arrived;
  for (const auto& [arrived_rank, of_rank] : waiting.ranks) arrived.push_back(arrived_rank);
  output_.to_leader(MessageType::kArrived, json::array({group, ranks, arrived}));
}

void Registrar::overdue(ports::SessionId session, std::uint32_t request) {
  for (const auto& [group, local] : local_) {
    for (const auto& [rank, waiting] : local.ranks) {
      if (waiting.session == session && waiting.request == request)
        return output_.to_leader(MessageType::kOverdue, json::array({group, rank}));
    }
  }
}

void Registrar::send_local_group(const std::string& group, LocalGroup& local) {
  const RankGroup& reference = local.ranks.begin()->second.group;
  Status disagreement;
  for (const auto& [rank, other] : local.ranks) {
    disagreement = compare_groups(config_.job, group, reference, other.group);
    if (!disagreement.ok()) break;
  }
  // Then no host registers it, and everybody learns why.
  if (disagreement.ok() && config_.admit) disagreement = config_.admit(reference.tensors, local.world);
  local.sent = true;
  output_.to_leader(MessageType::kGroup,
                    json::array({group, ranks_to_json(local.world), reference.rank, tensors_to_json(reference.tensors),
                                 status_to_json(disagreement)}));
}

bool Registrar::handle(const std::string& from, MessageType type, const json& body, Time now) {
  const bool i_lead = config_.self == config_.leader, leader_says = from == config_.leader;
  switch (type) {
    case MessageType::kArrived:
      return i_lead && handle_arrived(from, body, now);
    case MessageType::kGroup:
      return i_lead && handle_group(from, body, now);
    case MessageType::kOverdue:
      return i_lead && handle_overdue(from, body, now);
    case MessageType::kPlanned:
      return i_lead && handle_planned(from, body);
    case MessageType::kPlan:
      return leader_says && handle_plan(body);
    case MessageType::kActivate:
      return leader_says && handle_activate(body);
    case MessageType::kRejected:
      return leader_says && handle_rejected(body);
    case MessageType::kUnregister:
      return i_lead && handle_unregister(from, body, now);
    case MessageType::kVacate:
      return leader_says && handle_vacate(body);
    case MessageType::kStays:
      return leader_says && handle_stays(body);
    default:
      return false;
  }
}

bool Registrar::handle_arrived(const std::string& from, const json& body, Time now) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::optional<SharedWorld> world = world_from_json(in.array());
  ItemReader ranks(in.array());
  if (!in.done() || !world || group.empty()) return false;
  std::set<std::uint32_t> arrived;
  while (ranks.ok() && !ranks.done()) {
    const std::uint32_t rank = ranks.u32();
    if (!has(*world, rank) || rank >= config_.roster.world_size || config_.roster.host_of(rank) != from) return false;
    arrived.insert(rank);
  }
  if (!ranks.ok() || arrived.empty()) return false;
  if (Round* r = round(group, *world, *arrived.begin(), now)) {
    r->arrived.merge(arrived);
    fail_if_left(group, *r);
  }
  return true;
}

bool Registrar::handle_group(const std::string& from, const json& body, Time now) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::optional<SharedWorld> world = world_from_json(in.array());
  HostGroup of_host;
  of_host.group.rank = in.u32();
  auto tensors = tensors_from_json(in.array());
  of_host.disagreement = status_from_json(in.array());
  const std::uint32_t rank = of_host.group.rank;
  if (!in.done() || !world || !tensors || group.empty() || !has(*world, rank)) return false;
  if (rank >= config_.roster.world_size || config_.roster.host_of(rank) != from) return false;
  of_host.group.tensors = std::move(*tensors);
  if (!check_group(config_.job, group, of_host.group, size_of(*world)).ok()) return false;
  Round* const r = round(group, *world, rank, now);
  if (r == nullptr) return true;
  for (const std::uint32_t arrived : config_.roster.hosts[*config_.roster.index_of(from)].ranks) {
    if (has(*world, arrived)) r->arrived.insert(arrived);
  }
  if (!r->hosts.emplace(from, std::move(of_host)).second) return false;  // a host brings a group once per round
  if (r->hosts.size() == hosts_of(*world).size()) {
    finish_round(group);
  } else {
    fail_if_left(group, *r);
  }
  return true;
}

// In the order of the hosts, so that the ranks in the text are the lowest that differ.
Status Registrar::compare_hosts(const std::string& group, const Round& r) const {
  const std::vector<const RosterHost*> hosts = hosts_of(r.world);
  const HostGroup& reference = r.hosts.at(hosts.front()->name);
  for (const RosterHost* host : hosts) {
    const HostGroup& other = r.hosts.at(host->name);
    TL_RETURN_IF_ERROR(other.disagreement);
    TL_RETURN_IF_ERROR(compare_groups(config_.job, group, reference.group, other.group));
  }
  for (const TensorBody& tensor : reference.group.tensors) {
    const std::string name(name_of(tensor));
    if (names_.contains(name) || changing_names_.contains(name)) {
      return Status(Code::kAlreadyExists, fmt::format("tensor '{}' is registered already", name),
                    group_where(config_.job, group), "give every tensor of a job a name of its own");
    }
  }
  if (totals_.tensors + changing_names_.size() + reference.group.tensors.size() > kMaxPlanTensors) {
    return Status(Code::kResourceExhausted, fmt::format("a job has at most {} tensors", kMaxPlanTensors),
                  group_where(config_.job, group), "register fewer, larger tensors");
  }
  return {};
}

void Registrar::finish_round(const std::string& group) {
  const auto node = rounds_.extract(group);
  const Round& r = node.mapped();
  const Status status = compare_hosts(group, r);
  if (!status.ok()) return reject_registration(group, r.world, status);
  const auto& reference = r.hosts.at(hosts_of(r.world).front()->name).group.tensors;  // ids in this one's order
  Change change{.group = group, .world = r.world, .tensors = plan_tensors(reference, r.world)};
  add_batches(change, reference, &change.tensors);
  for (const RosterHost& host : config_.roster.hosts) change.waiting.insert(host.name);
  for (const TensorBody& tensor : reference) changing_names_.emplace(name_of(tensor));
  changes_.push_back(std::move(change));
  if (changes_.size() == 1) start_next_change();
}

std::vector<PlanTensor> Registrar::plan_tensors(const std::vector<TensorBody>& tensors,
                                                const SharedWorld& world) const {
  std::vector<PlanTensor> result;
  result.reserve(tensors.size());
  for (const TensorBody& tensor : tensors) {
    PlanTensor planned = config_.planner(tensor, world);
    planned.world = world;
    planned.name = name_of(tensor);
    planned.operation = tensor.operation;
    planned.reduce = tensor.reduce;
    planned.dtype = tensor.dtype;
    if (tensor.operation == Operation::kReduceScatter) planned.row = tensor.row;
    if (tensor.operation != Operation::kBarrier) planned.elements = tensor.elements;  // a barrier moves one of its own
    const std::uint32_t root = is_rooted(tensor.operation) ? tensor.root : 0;
    planned.root_rank = Rank(root);
    planned.root = world != nullptr ? world->places().host(root) : plan_.rank_hosts[root];
    result.push_back(std::move(planned));
  }
  return result;
}

// A job of one host has nothing to send; and what is planned must fit into a message.
void Registrar::add_batches(const Change& change, const std::vector<TensorBody>& registered,
                            std::vector<PlanTensor>* tensors) const {
  if (!config_.batch_planner || hosts_of(change.world).size() == 1) return;
  std::vector<PlanTensor> batched = *tensors;
  config_.batch_planner(registered, change.world, &batched);
  for (PlanTensor& tensor : batched) tensor.world = change.world;
  const std::size_t ranks = json::to_cbor(ranks_to_json(change.world)).size();
  const std::size_t room = kMaxWireMessage - protocol::kMaxName - kPlanHead - ranks;
  if (json::to_cbor(plan_tensors_to_json(batched)).size() > room ||
      totals_.tensors + changing_names_.size() + batched.size() > kMaxPlanTensors) {
    output_.note(fmt::format(
        "{}: {} tensors travel one by one, because there are too many of them to be told with their batches",
        group_where(config_.job, change.group), tensors->size()));
    return;
  }
  *tensors = std::move(batched);
}

// The leader's own plan_ is changed by its own kPlan or kVacate message, like that of every host; one change is under
// way at a time, so ids are known here.
void Registrar::start_next_change() {
  while (!changes_.empty() && !start(changes_.front())) changes_.pop_front();
}

// False when there is no room for it: then no host registers it.
bool Registrar::start(Change& change) {
  protocol::Plan next;  // without the tensors: it has plan_'s, and these or without those that leave
  next.version = plan_.version + 1;
  next.ordering = config_.ordering;
  next.concurrent = config_.concurrent;
  protocol::PlanHash hash = hash_;
  if (change.leaves) {
    for (const PlanTensor& tensor : tensors_in(groups_.at(change.group).range)) hash.remove(tensor);
    output_.to_all_hosts(MessageType::kVacate, json::array({change.group, next.version, hash.value(next)}));
    return true;
  }
  const protocol::TensorRange range = room_for(static_cast<std::uint32_t>(change.tensors.size()));
  if (range.end() > kMaxPlanTensors) {
    const Status status(Code::kResourceExhausted,
                        fmt::format("a job has at most {} places for tensors, and no {} in a row are vacant",
                                    kMaxPlanTensors, range.count),
                        group_where(config_.job, change.group), "register in smaller groups");
    for (const PlanTensor& tensor : change.tensors) changing_names_.erase(tensor.name);
    reject_registration(change.group, change.world, status);
    return false;
  }
  for (std::uint32_t i = 0; i < range.count; ++i) {
    PlanTensor& tensor = change.tensors[i];
    if (tensor.in_batch()) tensor.batch += range.first;
    tensor.id = TensorId(range.first + i);
    tensor.group = next.version;
    if (tensor.id.value < bases_.size()) tensor.base = bases_[tensor.id.value];
    hash.add(tensor);
  }
  output_.to_all_hosts(
      MessageType::kPlan,
      json::array({change.group, next.version, hash.value(next), static_cast<std::uint32_t>(next.ordering),
                   next.concurrent, ranks_to_json(change.world), plan_tensors_to_json(change.tensors)}));
  return true;
}

// Where the next `count` tensors go. A plan that nothing has left is not looked through.
protocol::TensorRange Registrar::room_for(std::uint32_t count) const {
  const std::size_t places = plan_.tensors.size();
  return totals_.tensors == places ? protocol::TensorRange{static_cast<std::uint32_t>(places), count}
                                   : plan_.room_for(count);
}

void Registrar::take_into_plan(protocol::TensorRange range, std::vector<PlanTensor> tensors) {
  for (const PlanTensor& tensor : tensors) {
    hash_.add(tensor);
    if (tensor.is_batch()) ++totals_.batches;
    if (tensor.in_batch()) ++totals_.batched;
  }
  totals_.tensors += range.count;
  plan_.place(range, std::move(tensors));
}

bool Registrar::handle_plan(const json& body) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::uint32_t version = in.u32();
  const std::uint64_t hash = in.number(~std::uint64_t{0});
  const auto ordering = static_cast<protocol::Ordering>(in.number(protocol::kOrderingCount - 1));
  const std::uint32_t concurrent = in.u32();
  const std::optional<SharedWorld> world = world_from_json(in.array());
  auto tensors = plan_tensors_from_json(in.array());
  if (!in.done() || !world || !tensors || tensors->empty() || version != plan_.version + 1) return false;
  if (plan_.version > 0 && (ordering != plan_.ordering || concurrent != plan_.concurrent)) return false;
  const protocol::TensorRange range{tensors->front().id.value, static_cast<std::uint32_t>(tensors->size())};
  if (!plan_.has_room(range) || !groups_.emplace(group, Group{range, *world}).second) return false;
  for (std::uint32_t i = 0; i < range.count; ++i) {
    PlanTensor& tensor = (*tensors)[i];
    if (tensor.id.value != range.first + i) return false;
    // Nobody asks for a batch by its name, which is not taken from anybody.
    if (!tensor.is_batch() && !names_.emplace(tensor.name, tensor.id).second) return false;
    tensor.group = version;
    tensor.world = *world;
  }
  take_into_plan(range, *std::move(tensors));
  plan_.version = version;
  plan_.ordering = ordering;
  plan_.concurrent = concurrent;
  totals_.hash = hash_.value(plan_);
  if (!protocol::check_batches(plan_, range).ok()) return false;
  output_.note(fmt::format("job '{}': plan version {} with {} tensors, hash {:016x}", config_.job, version,
                           totals_.tensors, totals_.hash));
  if (check_hash(hash)) output_.apply_plan(plan_.part(range));
  return true;
}

// Whether the plan is what the leader has said.
bool Registrar::check_hash(std::uint64_t hash) {
  if (totals_.hash == hash) return true;
  output_.fail_job(Status(Code::kInternal,
                          fmt::format("plan version {} has hash {:016x} here and {:016x} on the leader {}",
                                      plan_.version, totals_.hash, hash, config_.leader),
                          fmt::format("job '{}' on host {}", config_.job, config_.self),
                          "run the same version of tensorlaned on all hosts"));
  return false;
}

void Registrar::plan_in_force(std::uint32_t version) {
  if (version == plan_.version) output_.to_leader(MessageType::kPlanned, json::array({version, totals_.hash}));
}

bool Registrar::handle_planned(const std::string& from, const json& body) {
  ItemReader in(body);
  const std::uint32_t version = in.u32();
  const std::uint64_t hash = in.number(~std::uint64_t{0});
  if (!in.done() || changes_.empty() || version != plan_.version || hash != totals_.hash) return false;
  Change& change = changes_.front();
  change.waiting.erase(from);
  if (!change.waiting.empty()) return true;
  for (const PlanTensor& tensor : change.tensors) changing_names_.erase(tensor.name);
  output_.to_all_hosts(MessageType::kActivate, json::array({version, change.group}));
  changes_.pop_front();
  start_next_change();
  return true;
}

bool Registrar::handle_activate(const json& body) {
  ItemReader in(body);
  const std::uint32_t version = in.u32();
  const std::string group = in.text(protocol::kMaxName);
  const auto known = groups_.find(group);
  if (!in.done() || version > plan_.version || known == groups_.end()) return false;
  if (known->second.left > 0) {
    let_go(group);
    return true;
  }
  const auto local = local_.find(group);
  const bool takes_part = ranks_here(known->second.world) > 0;
  if (takes_part && (local == local_.end() || !local->second.sent)) return false;
  known->second.active = true;
  if (!takes_part) return true;
  activate(group, local->second);
  local_.erase(local);
  return true;
}

void Registrar::activate(const std::string& group, LocalGroup& local) {
  for (auto& [rank, of_rank] : local.ranks) {
    std::vector<TensorId> ids;
    ids.reserve(of_rank.group.tensors.size());
    for (const TensorBody& tensor : of_rank.group.tensors) {
      const auto id = names_.find(std::string(name_of(tensor)));
      if (id == names_.end()) {
        return output_.fail_job(Status(Code::kInternal, fmt::format("the plan lacks tensor '{}'", name_of(tensor)),
                                       group_where(config_.job, group),
                                       "run the same version of tensorlaned on all hosts"));
      }
      const std::uint32_t number = local.world == nullptr ? rank : *local.world->rank_of(rank);
      const std::uint64_t bytes = protocol::buffer_bytes(tensor, size_of(local.world), number);
      output_.bind(rank, id->second, ports::BufferPlace{tensor.segment, tensor.offset, bytes});
      ids.push_back(id->second);
    }
    output_.answer(of_rank.session, of_rank.request, std::move(ids));
  }
}

bool Registrar::handle_rejected(const json& body) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::optional<SharedWorld> world = world_from_json(in.array());
  const Status status = status_from_json(in.array());
  const auto local = local_.find(group);
  if (!in.done() || !world || status.ok()) return false;
  // It may be of a process set that has no rank here, or of another one whose ranks have given it this name.
  if (local == local_.end() || !is_same(local->second.world, *world)) return true;
  const auto node = local_.extract(local);
  for (const auto& [rank, of_rank] : node.mapped().ranks) refuse(of_rank, status);
  return true;
}

void Registrar::fail_if_left(const std::string& group, const Round& r) {
  for (const std::uint32_t rank : left_) {
    if (!has(r.world, rank) || r.arrived.contains(rank)) continue;
    return output_.fail_job(
        Status(Code::kAborted, fmt::format("rank {} on host {} has left the job", rank, config_.roster.host_of(rank)),
               group_where(config_.job, group), "let every rank register before any leaves"));
  }
}

void Registrar::rank_left(std::uint32_t rank) {
  left_.insert(rank);
  if (config_.self != config_.leader) return;
  reject_departures_without(rank);
  for (const auto& [group, r] : rounds_) {
    if (!has(r.world, rank) || r.arrived.contains(rank)) continue;
    return fail_if_left(group, r);
  }
}

void Registrar::tick(Time now) {
  tick_departures(now);
  tick_change(now);
  for (auto& [group, r] : rounds_) {
    const Duration waited = now - r.since;
    const bool too_long = waited >= config_.stall_error;
    if (!too_long && waited < r.reported + config_.stall_warning) continue;
    r.reported = waited;
    const std::vector<std::uint32_t> ranks = missing(r, r.world);
    if (ranks.empty()) continue;
    if (too_long) return fail_missing(group, r, waited, "the stall time");
    for (const std::uint32_t rank : ranks) output_.report_late(rank, fmt::format("group '{}'", group), waited);
  }
}

// A host's lane takes the memory of a plan, and opens the flows that it needs.
void Registrar::tick_change(Time now) {
  if (changes_.empty()) return;
  Change& change = changes_.front();
  if (!change.since) change.since = now;
  const Duration waited = now - *change.since;
  if (waited >= config_.stall_error) return fail_change(waited, "the stall time");
  if (waited < change.reported + config_.stall_warning) return;
  change.reported = waited;
  output_.note(
      fmt::format("{}: plan version {} is not in force on {} after {:.1f} s; the logs of the daemons there say why",
                  group_where(config_.job, change.group), plan_.version, listed(change.waiting), to_seconds(waited)));
}

void Registrar::fail_change(Duration waited, const std::string& or_raise) {
  const Change& change = changes_.front();
  output_.fail_job(Status(Code::kTimedOut,
                          fmt::format("plan version {} is not in force on {} after {:.1f} s", plan_.version,
                                      listed(change.waiting), to_seconds(waited)),
                          group_where(config_.job, change.group),
                          "look at the logs of the daemons there, or raise " + or_raise));
}

// Nobody is missing from what is neither among the rounds nor under way any more: the answer is on its way.
bool Registrar::handle_overdue(const std::string& from, const json& body, Time now) {
  ItemReader in(body);
  const std::string group = in.text(protocol::kMaxName);
  const std::uint32_t rank = in.u32();
  if (!in.done() || rank >= config_.roster.world_size || config_.roster.host_of(rank) != from) return false;
  const std::string its_time = fmt::format("TENSORLANE_TIMEOUT of rank {}, which waits no longer", rank);
  if (std::ranges::any_of(changes_, [&](const Change& change) { return change.group == group && !change.leaves; })) {
    fail_change(now - changes_.front().since.value_or(now), its_time);
    return true;
  }
  const auto r = rounds_.find(group);
  if (r == rounds_.end() || missing(r->second, r->second.world).empty()) return true;
  fail_missing(group, r->second, now - r->second.since, its_time);
  return true;
}

void Registrar::fail_missing(const std::string& group, const Round& r, Duration waited, const std::string& or_raise) {
  output_.fail_job(Status(Code::kTimedOut,
                          fmt::format("{} not registered after {:.1f} s",
                                      ranks_have_text(config_.roster, missing(r, r.world)), to_seconds(waited)),
                          group_where(config_.job, group),
                          "find out what is done there instead, or raise " + or_raise));
}

void Registrar::fail(const Status& cause) {
  const auto waiting = std::move(local_);
  local_.clear();
  for (const auto& [group, local] : waiting) {
    for (const auto& [rank, of_rank] : local.ranks) refuse(of_rank, cause);
  }
  fail_leaving(cause);
  rounds_.clear();
  changes_.clear();
}

}  // namespace tensorlane::control
