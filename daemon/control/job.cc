// One job: the sessions of this host, the lane, and how it ends.
#include "daemon/control/job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/control/proof.h"

namespace tensorlane::control {
namespace {

constexpr std::size_t kMaxLateReports = 64;
constexpr Duration kGatheringTick = milliseconds(50);
constexpr std::int64_t kOnItsWayShare = 5;  // of the detection time, for what a rank has sent before it left

}  // namespace

const char* state_name(Job::State state) {
  switch (state) {
    case Job::State::kGathering:
      return "gathering";
    case Job::State::kConnecting:
      return "connecting";
    case Job::State::kRunning:
      return "running";
    case Job::State::kClosing:
      return "closing";
    case Job::State::kDone:
      return "done";
  }
  return "unknown";
}

Job::Job(const JobRules& rules, JobEnvironment& environment, ControlCounters& counters, const ports::JoinRequest& first,
         JobKey key, Epoch epoch, Time now)
    : rules_(rules),
      environment_(environment),
      counters_(counters),
      key_(std::move(key)),
      id_(key_.id()),
      secret_(first.secret),
      now_(now),
      epoch_(leader_ == rules.host ? epoch : Epoch(0)),
      gathering_(first.job),
      patience_(rules.join_timeout),
      deadline_(now + patience_),
      next_join_(now),
      nonce_(random_nonce()) {}

Job::~Job() {
  for (const std::string& host : needed_) environment_.release(host);
}

std::string Job::where() const {
  return fmt::format("job '{}' on host {}", name_, rules_.host);
}

Duration Job::tick_interval() const {
  return liveness_ ? Duration(liveness_->interval().value / 4) : kGatheringTick;
}

std::vector<Claim> Job::local_claims() const {
  std::vector<Claim> claims;
  for (const LocalRank& local : locals_) claims.push_back(local.claim);
  return claims;
}

bool Job::locals_gone() const {
  return std::all_of(locals_.begin(), locals_.end(), [](const LocalRank& local) { return local.gone; });
}

Status Job::check_secret(const ports::JoinRequest& request) const {
  if (!equal_in_constant_time(request.secret, secret_)) {
    return Status(Code::kPermissionDenied,
                  fmt::format("rank {} brings another secret than the job's first rank", request.rank), where(),
                  "set the same TENSORLANE_JOB_SECRET on every rank");
  }
  return {};
}

void Job::join(const ports::JoinRequest& request, Time now) {
  now_ = now;
  const auto refuse_rank = [&](Status status) {
    environment_.tell(
        [session = request.session, status](ports::SessionEvents& events) { events.joined(session, status); });
  };
  if (const Status status = check_secret(request); !status.ok()) {
    ++counters_.refused_secrets;
    if (const auto held_back = log_gate_.pass(now, std::to_string(request.uid))) {
      spdlog::warn("process {} of user {} was refused: {}{}", request.pid, request.uid, status.to_string(),
                   held_back_text(*held_back));
    }
    return refuse_rank(status);
  }
  if (state_ != State::kGathering) {
    return refuse_rank(Status(Code::kAlreadyExists, "a job of this name is running", where(),
                              "wait until it ends, or set another TENSORLANE_JOB or MASTER_PORT"));
  }
  const Claim claim{request.rank, request.world_size, request.local_rank, request.local_world_size, request.pid};
  locals_.push_back({request.session, request.client, claim});
  expect_patience(request);
  spdlog::debug("job '{}': rank {} has come (user {}, pid {})", name_, request.rank, request.uid, request.pid);
  if (const Status status = gathering_.arrive(rules_.host, local_claims()); !status.ok()) return fail(status, now);
  if (!i_lead()) return send_join();
  if (gathering_.complete()) lead();
  settle();
}

// A client that gives up before it has heard who is missing is the one whom all the others blame.
void Job::expect_patience(const ports::JoinRequest& request) {
  if (request.timeout.value <= 0 || request.timeout >= patience_) return;
  patience_ = request.timeout;
  impatient_ = request.rank;
  deadline_ = std::min(deadline_, now_ + patience_);
}

// The rank whose session it is, in a job that runs.
Result<std::uint32_t> Job::running_rank(ports::SessionId session) const {
  const auto it = std::ranges::find(locals_, session, &LocalRank::session);
  if (it == locals_.end() || it->gone || state_ == State::kGathering || state_ == State::kConnecting) {
    return Status(Code::kInvalidArgument, "this client does not take part in the job (yet)", where(),
                  "join before registering tensors");
  }
  if (state_ != State::kRunning || !registrar_) return cause_;
  return it->claim.rank;
}

void Job::register_group(ports::SessionId session, std::uint32_t request, const std::string& group,
                         std::vector<protocol::TensorBody> tensors, const std::vector<std::uint32_t>& ranks, Time now) {
  now_ = now;
  const Result<std::uint32_t> rank = running_rank(session);
  if (!rank.ok()) return answer(session, request, rank.status());
  registrar_->register_group(*rank, session, request, group, std::move(tensors), ranks);
  settle();
}

void Job::unregister_group(ports::SessionId session, std::uint32_t request, const std::string& group,
                           std::uint64_t operations, Duration patience, Time now) {
  now_ = now;
  const Result<std::uint32_t> rank = running_rank(session);
  if (!rank.ok()) return answer_unregistered(session, request, rank.status());
  registrar_->unregister_group(*rank, session, request, group, operations, patience);
  settle();
}

void Job::overdue(ports::SessionId session, std::uint32_t request, Time now) {
  now_ = now;
  if (state_ != State::kRunning || !registrar_) return;  // it is told why in any case
  registrar_->overdue(session, request);
  settle();
}

bool Job::leave(ports::SessionId session, const Status& why, Time now) {
  now_ = now;
  const auto it =
      std::find_if(locals_.begin(), locals_.end(), [&](const LocalRank& local) { return local.session == session; });
  if (it == locals_.end() || it->gone) return false;
  it->gone = true;
  const std::uint32_t rank = it->claim.rank;
  if (why.ok()) environment_.tell([session](ports::SessionEvents& events) { events.left(session); });
  const std::string place = fmt::format("rank {} on host {}, job '{}'", rank, rules_.host, name_);
  if (!why.ok()) {
    fail(Status(why.code(), why.what(), why.where().empty() ? place : why.where(), why.fix()), now);
  } else if (state_ == State::kGathering || state_ == State::kConnecting) {
    fail(Status(Code::kAborted,
                fmt::format("rank {} on host {} has left before the job was complete", rank, rules_.host), where(),
                "start the job again"),
         now);
  } else if (state_ == State::kRunning) {
    send_others(MessageType::kLeft, nlohmann::json::array({rank}));
    rank_left(rank);
    settle();
  }
  return true;
}

// A departed rank stays attached to the lane until all ranks of all hosts have left: the flows must not close under
// those who still work, and the lane goes on reporting who waits for whom. Its memory belongs to the daemon's own
// mapping, which lives as long.
void Job::rank_left(std::uint32_t rank) {
  left_.insert(rank);
  last_left_ = now_;
  if (registrar_) registrar_->rank_left(rank);
  if (left_.size() == roster_.world_size && state_ == State::kRunning) return end_in_peace();
  environment_.lane(id_, [id = id_, rank = Rank(rank)](ports::LanePort& lane) { return lane.rank_left(id, rank); });
}

void Job::end_in_peace() {
  state_ = State::kClosing;
  cause_ = Status(Code::kAborted, "the job has ended", where());
  for (const LocalRank& local : locals_) {
    environment_.lane(
        id_, [id = id_, rank = Rank(local.claim.rank)](ports::LanePort& lane) { return lane.detach(id, rank); });
  }
  log(spdlog::level::info, "job '{}': every rank has left", name_);
}

ports::JobSpec Job::make_spec(ports::PairKeys keys) const {
  ports::JobSpec spec;
  spec.name = name_;
  spec.owner = {key_.uid, name_};
  spec.credentials = {id_, epoch_, HostIndex(static_cast<std::uint16_t>(*roster_.index_of(rules_.host))),
                      std::move(keys)};
  spec.world_size = roster_.world_size;
  spec.detection = liveness_->detection();
  for (const RosterHost& member : roster_.hosts) {
    const fabric::Host* host = rules_.fabric->find_host(member.name);
    TL_ASSERT(host != nullptr);
    ports::JobHost job_host{member.name, member.addresses, host->data_port, {}};
    for (const std::uint32_t rank : member.ranks) job_host.ranks.push_back(Rank(rank));
    spec.hosts.push_back(std::move(job_host));
  }
  return spec;
}

// Who it is: on a job of many hosts, the first of them.
void Job::log_begin() const {
  constexpr std::size_t kNamed = 8;
  std::string hosts, ranks;
  for (std::size_t i = 0; i < std::min(roster_.hosts.size(), kNamed); ++i)
    hosts += (i == 0 ? "" : ", ") + roster_.hosts[i].name;
  if (roster_.hosts.size() > kNamed) hosts += fmt::format(" and {} more", roster_.hosts.size() - kNamed);
  for (const LocalRank& local : locals_)
    ranks += fmt::format("{}rank {} (pid {})", ranks.empty() ? "" : ", ", local.claim.rank, local.claim.pid);
  log(spdlog::level::info, "job '{}' of user {}: epoch {}, {} ranks on {} hosts ({}), led by {}; here {}", name_,
      key_.uid, epoch_.value, roster_.world_size, roster_.hosts.size(), hosts, leader_, ranks);
}

// The roster is known: bring the lane up and expect heartbeats.
void Job::begin(Roster roster, Duration detection, ports::PairKeys keys) {
  state_ = State::kConnecting;
  roster_ = std::move(roster);
  // The leader knows which hosts are missing: its error is to come before a follower's own.
  const Duration longer = i_lead() ? Duration() : Duration(patience_.value / 4);
  deadline_ = impatient_ ? deadline_ + std::min(longer, seconds(1)) : now_ + patience_ + longer;
  liveness_.emplace(detection);
  if (i_lead()) {
    for (const auto& [host, follower] : followers_) {
      if (is_member(host)) send_roster(host);
    }
  }
  for (const RosterHost& member : roster_.hosts) {
    if (member.name == rules_.host) continue;
    need(member.name);
    liveness_->add(member.name, now_);
  }
  spec_ = make_spec(std::move(keys));
  progress_.emplace(make_progress());
  RegistrarConfig config{.job = name_,
                         .self = rules_.host,
                         .leader = leader_,
                         .roster = roster_,
                         .stall_warning = rules_.stall_warning,
                         .stall_error = rules_.stall_error,
                         .ordering = rules_.ordering,
                         .concurrent = rules_.concurrent};
  set_planners(&config);
  registrar_.emplace(std::move(config), static_cast<RegistrarOutput&>(*this));
  ++counters_.jobs_started;
  log_begin();
  environment_.lane(id_, [spec = spec_](ports::LanePort& lane) { return lane.start_job(spec); });
}

// What decides how tensors are planned sees the job as their world does.
void Job::set_planners(RegistrarConfig* config) {
  config->planner = [this](const protocol::TensorBody& tensor, const protocol::SharedWorld& world) {
    return rules_.planner(tensor, spec_for(world));
  };
  if (rules_.batch_planner) {
    config->batch_planner = [this](const std::vector<protocol::TensorBody>& registered,
                                   const protocol::SharedWorld& world, std::vector<protocol::PlanTensor>* tensors) {
      rules_.batch_planner(registered, spec_for(world), tensors);
    };
  }
  if (rules_.admit) {
    config->admit = [this](const std::vector<protocol::TensorBody>& tensors, const protocol::SharedWorld& world) {
      return rules_.admit(spec_for(world), tensors);
    };
  }
}

// Tensors of a world come a group at a time.
const ports::JobSpec& Job::spec_for(const protocol::SharedWorld& world) {
  if (world == nullptr) return spec_;
  if (narrowed_to_ != world) narrowed_ = spec_.narrowed(*world);
  narrowed_to_ = world;
  return narrowed_;
}

// Every host has the job: the ranks may come in.
void Job::go() {
  state_ = State::kRunning;
  const ports::JoinInfo info{epoch_, static_cast<std::uint32_t>(roster_.hosts.size()), spec_.credentials.self,
                             liveness_->detection(), rules_.host};
  for (LocalRank& local : locals_) {
    environment_.lane(id_, [id = id_, rank = Rank(local.claim.rank), client = local.client](ports::LanePort& lane) {
      return lane.attach(id, rank, client);
    });
    local.joined = true;
    local.client.reset();  // the lane's from here on
    environment_.tell([session = local.session, info](ports::SessionEvents& events) { events.joined(session, info); });
  }
}

void Job::lane_connected(Time now) {
  now_ = now;
  if (state_ != State::kConnecting) return;
  to_leader(MessageType::kConnected, nlohmann::json::array());
  settle();
}

void Job::lane_failed(const Status& cause, Time now) {
  now_ = now;
  if (locals_gone()) {  // nobody here needs the flows any more; who still does notices on its own
    log(spdlog::level::info, "job '{}': after the last rank of host {} had left: {}", name_, rules_.host,
        cause.to_string());
    return;
  }
  fail(cause, now);
}

// What the lane says may be older than the plan.
bool Job::plans(TensorId tensor) const {
  const auto& tensors = registrar_->plan().tensors;
  return tensor.value < tensors.size() && !tensors[tensor.value].vacant;
}

std::string Job::what_tensor(TensorId tensor) const {
  const protocol::PlanTensor& planned = registrar_->plan().tensors[tensor.value];
  return fmt::format("tensor '{}'{}", planned.name, planned.in_batch() ? ", which travels in a batch" : "");
}

bool Job::fail_if_left(std::uint32_t rank, TensorId tensor) {
  if (!left_.contains(rank)) return false;
  fail(Status(Code::kAborted, fmt::format("rank {} on host {} has left the job", rank, roster_.host_of(rank)),
              fmt::format("{} of job '{}'", what_tensor(tensor), name_),
              "let every rank finish its operations before any leaves"),
       now_);
  return true;
}

void Job::lane_late(Rank rank, TensorId tensor, Duration waited, Time now) {
  now_ = now;
  if (state_ != State::kRunning || !plans(tensor) || rank.value >= roster_.world_size ||
      fail_if_left(rank.value, tensor))
    return;
  const std::string what = what_tensor(tensor);
  if (registrar_->has_left_for_good(rank.value, tensor)) {
    return fail(Status(Code::kAborted,
                       fmt::format("rank {} on host {} has left its process set, and others wait for it", rank.value,
                                   roster_.host_of(rank.value)),
                       fmt::format("{} of job '{}'", what, name_),
                       "let every rank finish the operations of a process set before any leaves it"),
                now);
  }
  if (waited >= rules_.stall_error) {
    fail(Status(Code::kTimedOut,
                fmt::format("rank {} on host {} has not submitted for {:.1f} s", rank.value,
                            roster_.host_of(rank.value), to_seconds(waited)),
                fmt::format("{} of job '{}'", what, name_),
                "find out what the rank does instead, or raise the stall time"),
         now);
  } else if (waited >= rules_.stall_warning) {
    report_late(rank.value, what, waited);
  }
}

// Which of the peer's ranks is late, its lane knows.
void Job::lane_misses(HostIndex peer, TensorId tensor, Sequence sequence, Duration waited, Time now) {
  now_ = now;
  if (state_ != State::kRunning || !plans(tensor) || peer.value >= roster_.hosts.size() ||
      peer == spec_.credentials.self)
    return;
  const RosterHost& host = roster_.hosts[peer.value];
  const protocol::SharedWorld& world = registrar_->plan().tensors[tensor.value].world;
  for (const std::uint32_t rank : host.ranks) {
    if ((world == nullptr || world->rank_of(rank)) && fail_if_left(rank, tensor)) return;
  }
  send_member(host.name, MessageType::kAwaited,
              nlohmann::json::array({tensor.value, sequence.value, static_cast<std::uint64_t>(waited.value)}));
}

void Job::lane_wants_flows(HostIndex peer, Time now) {
  now_ = now;
  if (state_ != State::kRunning || peer.value >= roster_.hosts.size() || peer == spec_.credentials.self) return;
  send_member(roster_.hosts[peer.value].name, MessageType::kFlows, nlohmann::json::array());
}

std::string Job::what_message(std::uint32_t rank, std::uint32_t peer, ports::MessageWait why) const {
  if (why != ports::MessageWait::kCredit) return fmt::format("a message to or from rank {}", rank);
  return fmt::format("messages: one of rank {} waits until fewer than {} from host {} to host {} are unreceived", rank,
                     ports::kAnnouncedMessages, roster_.host_of(rank), roster_.host_of(peer));
}

// A program may wait for a message as long as it likes, which is told, but not for one of ranks that have left. The
// last one that such a rank has sent may still be on its way: its announcement, or all of it.
void Job::lane_message_waits(Rank rank, std::optional<Rank> peer, ports::MessageWait why, Duration waited, Time now) {
  now_ = now;
  if (state_ != State::kRunning || rank.value >= roster_.world_size) return;
  if (peer ? !left_.contains(peer->value) : left_.size() + 1 < roster_.world_size) {
    if (peer && peer != rank && waited >= rules_.stall_warning)
      report_late(peer->value, what_message(rank.value, peer->value, why), waited);
    return;
  }
  const Duration on_its_way(liveness_->detection().value / kOnItsWayShare);
  if (why == ports::MessageWait::kTransfer || now - last_left_ < on_its_way) return;
  const std::string gone =
      peer ? fmt::format("rank {} on host {} has", peer->value, roster_.host_of(peer->value)) : "all other ranks have";
  fail(Status(Code::kAborted, fmt::format("{} left the job", gone),
              fmt::format("rank {} of job '{}' has waited {:.1f} s for a message to or from it", rank.value, name_,
                          to_seconds(waited)),
              "let every rank send and receive all messages before any leaves"),
       now);
}

void Job::lane_closed(Time now) {
  now_ = now;
  if (state_ == State::kClosing) return finish();
  fail(Status(Code::kInternal, "the lane has closed the job on its own", where(), "report this"), now);
  finish();
}

void Job::finish() {
  state_ = State::kDone;
  locals_.clear();
}

void Job::plan_in_force(std::uint32_t version, Time now) {
  now_ = now;
  if (state_ == State::kRunning) registrar_->plan_in_force(version);
  settle();
}

void Job::fail(Status cause, Time now) {
  now_ = now;
  failures_.push_back(std::move(cause));
  settle();
}

void Job::do_fail(const Status& cause) {
  if (state_ == State::kClosing || state_ == State::kDone) return;
  const bool lane_knows = state_ != State::kGathering;
  cause_ = cause;
  ++counters_.jobs_failed;
  if (state_ == State::kGathering) ++counters_.jobs_failed_gathering;
  if (state_ == State::kConnecting) ++counters_.jobs_failed_connecting;
  log(spdlog::level::err, "job '{}' has failed on host {}: {}", name_, rules_.host, cause.to_string());
  if (rules_.job_failed) rules_.job_failed(id_, epoch_, name_);
  flood_abort();
  state_ = State::kClosing;
  if (lane_knows)
    environment_.lane(id_, [id = id_, cause](ports::LanePort& lane) { return lane.abort_job(id, cause); });
  if (registrar_) registrar_->fail(cause);
  for (LocalRank& local : locals_) {
    local.client.reset();
    if (local.gone) continue;
    environment_.tell([session = local.session, joined = local.joined, cause](ports::SessionEvents& events) {
      joined ? events.job_failed(session, cause) : events.joined(session, cause);
    });
  }
  to_self_.clear();
  if (!lane_knows) finish();
}

void Job::tick(Time now) {
  now_ = now;
  if (state_ == State::kGathering) tick_gathering();
  if (state_ == State::kConnecting || state_ == State::kRunning) tick_running();
  settle();
}

void Job::note_late(std::uint32_t rank, const std::string& what, Duration waited) {
  ++counters_.late_reports;
  late_[{rank, what}] = {waited, now_};
  if (late_.size() > kMaxLateReports) {
    late_.erase(std::min_element(late_.begin(), late_.end(),
                                 [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  const auto logged = late_logged_.find(rank);
  if (logged != late_logged_.end() && now_ - logged->second < seconds(1))
    return;  // a late rank is late with every tensor
  late_logged_[rank] = now_;
  log(spdlog::level::warn, "job '{}': rank {} on host {} is late with {}: {:.1f} s", name_, rank, roster_.host_of(rank),
      what, to_seconds(waited));
}

void Job::lane_iteration(Duration time, Time now) {
  now_ = now;
  if (!i_lead() || rules_.tuned_classes == 0 || state_ != State::kRunning || !registrar_) return;
  if (!tuner_) tuner_.emplace(rules_.tuned_classes);
  if (const auto thresholds = tuner_->iteration(registrar_->plan(), time)) {
    log(spdlog::level::info, "job '{}': thresholds between classes are {} now", name_,
        nlohmann::json(*thresholds).dump());
    to_all_hosts(MessageType::kThresholds, nlohmann::json(*thresholds));
  }
  settle();
}

// ---- what the registrar asks for ----

void Job::to_leader(MessageType type, nlohmann::json body) {
  if (i_lead()) {
    to_self_.emplace_back(type, std::move(body));
  } else {
    send_member(leader_, type, std::move(body));
  }
}

void Job::to_all_hosts(MessageType type, nlohmann::json body) {
  send_others(type, body);
  to_self_.emplace_back(type, std::move(body));
}

void Job::apply_plan(protocol::Plan added) {
  const auto then = environment_.when_plan_in_force(id_, epoch_, added.version);
  environment_.lane(id_, [id = id_, added = std::move(added), then](ports::LanePort& lane) {
    return lane.apply_plan(id, added, then);
  });
}

void Job::vacate(std::uint32_t version, protocol::TensorRange range) {
  const auto then = environment_.when_plan_in_force(id_, epoch_, version);
  environment_.lane(
      id_, [id = id_, version, range, then](ports::LanePort& lane) { return lane.vacate(id, version, range, then); });
}

void Job::bind(std::uint32_t rank, TensorId tensor, ports::BufferPlace place) {
  environment_.lane(id_, [id = id_, rank = Rank(rank), tensor, place](ports::LanePort& lane) {
    return lane.bind(id, rank, tensor, place);
  });
}

void Job::answer(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) {
  environment_.tell([session, request, ids = std::move(ids)](ports::SessionEvents& events) {
    events.registered(session, request, ids);
  });
}

void Job::answer_unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) {
  environment_.tell([session, request, tensors = std::move(tensors)](ports::SessionEvents& events) {
    events.unregistered(session, request, tensors);
  });
}

void Job::report_late(std::uint32_t rank, const std::string& what, Duration waited) {
  send_others(MessageType::kLate, nlohmann::json::array({rank, what, static_cast<std::uint64_t>(waited.value)}));
  note_late(rank, what, waited);
}

void Job::fail_job(Status cause) {
  failures_.push_back(std::move(cause));
}

}  // namespace tensorlane::control
