#include "daemon/control/control.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "daemon/control/proof.h"

namespace tensorlane::control {
namespace {

constexpr Duration kIdleTurn = milliseconds(500), kQuestionTurn = milliseconds(50), kLaneRetry = milliseconds(1),
                   kStopTurn = milliseconds(5), kStopPatience = seconds(1);
constexpr std::size_t kMaxJoinMessage = 4096;  // bytes: three numbers and two short texts
// What others ask for is done in slices of so much: between two of them jobs say that they live. One thing asked for is
// never cut.
constexpr Duration kSlice = milliseconds(20);

Time clock_now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                  .count());
}

// Quarters of a second since 2026 began: larger after every restart of the daemon, and enough until 2060.
std::uint32_t epoch_of_wall_clock() {
  using Quarters = std::chrono::duration<std::int64_t, std::ratio<1, 4>>;
  const auto since_1970 =
      std::chrono::duration_cast<Quarters>(std::chrono::system_clock::now().time_since_epoch()).count();
  return static_cast<std::uint32_t>(std::max<std::int64_t>(since_1970 - std::int64_t{1767225600} * 4, 1));
}

Status too_many() {
  return Status(Code::kResourceExhausted, fmt::format("{} requests wait for the daemon", Inbox::kMaxRequests),
                "control plane", "try again later");
}

// Of 62 bits, so that counting on from it never ends.
std::uint64_t random_number() {
  const std::string bytes = random_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data(), std::min(sizeof number, bytes.size()));
  return number >> 2;
}

}  // namespace

Control::Control(ControlConfig config)
    : config_(std::move(config)),
      questions_(config_.host, answerers(), static_cast<QuestionEnvironment&>(*this), random_number()) {
  TL_ASSERT(config_.fabric != nullptr && config_.planner);
  rules_.fabric = config_.fabric;
  rules_.link_speeds = fabric::LinkSpeeds(*config_.fabric);
  rules_.host = config_.host;
  rules_.detection = config_.detection;
  rules_.join_timeout = config_.join_timeout;
  rules_.stall_warning = config_.stall_warning;
  rules_.stall_error = config_.stall_error;
  rules_.planner = config_.planner;
  rules_.job_failed = config_.job_failed;
  rules_.batch_planner = config_.batch_planner;
  rules_.tuned_classes = config_.tuned_classes;
  rules_.ordering = config_.ordering;
  rules_.concurrent = config_.concurrent;
  rules_.settings = config_.settings;
}

Control::~Control() {
  quit_ = true;
  inbox_.event([] {});
  if (thread_.joinable()) thread_.join();
}

Status Control::start(ports::LanePort& lane, ports::SessionEvents& sessions) {
  TL_ASSERT(!thread_.joinable());
  if (!start_cryptography())
    return Status(Code::kUnavailable, "there is no source of random numbers", config_.host, "repair /dev/urandom");
  if (config_.fabric->find_host(config_.host) == nullptr) {
    return Status(Code::kInvalidArgument, fmt::format("host '{}' is not in the fabric file", config_.host),
                  config_.fabric->path, "add it, or tell the daemon which of the file's hosts it runs on");
  }
  TL_ASSIGN_OR_RETURN(
      wire_, Wire::open(*config_.fabric, config_.host, config_.secret_key, config_.detection, counters_, resolver_));
  lane_port_ = &lane;
  rules_.admit = [&lane](const ports::JobSpec& spec, const std::vector<protocol::TensorBody>& tensors) {
    return lane.admit(spec, tensors);
  };
  session_events_ = &sessions;
  now_ = started_ = clock_now();
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "tl-control");
  return {};
}

void Control::stop() {
  if (!thread_.joinable()) return;
  inbox_.event([this] { do_stop(); });
  thread_.join();
}

void Control::do_stop() {
  stopping_ = true;
  stop_by_ = now_ + kStopPatience;
  for (auto& [id, job] : jobs_) {
    job->fail(Status(Code::kUnavailable, fmt::format("the daemon of host {} stops", config_.host),
                     fmt::format("job '{}'", job->name()), "start it again, then restart the job from a checkpoint"),
              now_);
  }
}

// ---- any thread ----

void Control::join(ports::JoinRequest request) {
  const ports::SessionId session = request.session;
  const auto shared = std::make_shared<ports::JoinRequest>(std::move(request));
  if (!inbox_.request([this, shared] { do_join(std::move(*shared), now_ + config_.join_timeout); }))
    session_events_->joined(session, too_many());
}

void Control::register_group(ports::SessionId session, std::uint32_t request, std::string group,
                             std::vector<protocol::TensorBody> tensors, std::vector<std::uint32_t> ranks) {
  const auto shared = std::make_shared<std::vector<protocol::TensorBody>>(std::move(tensors));
  const auto ask = [this, session, request, group, ranks = std::move(ranks), shared] {
    do_register(session, request, group, std::move(*shared), ranks);
  };
  if (!inbox_.request(ask)) session_events_->registered(session, request, too_many());
}

// At most once for each registration, of which there are not many.
void Control::overdue(ports::SessionId session, std::uint32_t request) {
  inbox_.event([this, session, request] {
    const auto it = sessions_.find(session);
    if (Job* job = it == sessions_.end() ? nullptr : find(it->second.job)) job->overdue(session, request, now_);
  });
}

void Control::unregister_group(ports::SessionId session, std::uint32_t request, std::string group,
                               std::uint64_t operations, Duration patience) {
  const auto ask = [this, session, request, group = std::move(group), operations, patience] {
    const Result<Job*> job = job_of(session);
    if (!job.ok()) return session_events_->unregistered(session, request, job.status());
    (*job)->unregister_group(session, request, group, operations, patience, now_);
  };
  if (!inbox_.request(ask)) session_events_->unregistered(session, request, too_many());
}

void Control::leave(ports::SessionId session, Status why) {
  inbox_.event([this, session, why = std::move(why)] { do_leave(session, why); });
}

void Control::status(ports::SessionId session, std::uint32_t uid, std::uint32_t request) {
  if (!inbox_.request([this, session, uid, request] { status_questions_[uid].push_back({session, request}); }))
    session_events_->status(session, request, nlohmann::json{{"error", too_many().to_string()}}.dump());
}

void Control::ask(ports::SessionId session, std::uint32_t uid, std::uint32_t request, std::string question) {
  const auto shared = std::make_shared<std::string>(std::move(question));
  if (!inbox_.request([this, session, uid, request, shared] {
        questions_.ask(session, request, uid == geteuid() ? 0 : uid, *shared, now_);
      }))
    session_events_->status(session, request, nlohmann::json{{"error", error_object(too_many())}}.dump());
}

void Control::ask_host(const std::string& host, const std::string& kind, const nlohmann::json& args, Duration patience,
                       ports::Answered done) {
  inbox_.event([this, host, kind, args, patience, done = std::move(done)]() mutable {
    questions_.ask_host(host, kind, args, patience, std::move(done), now_);
  });
}

void Control::on_job_connected(JobId job) {
  inbox_.event([this, job] {
    if (Job* found = find(job)) found->lane_connected(now_);
  });
}

void Control::on_job_failed(JobId job, const Status& cause) {
  inbox_.event([this, job, cause] {
    if (Job* found = find(job)) found->lane_failed(cause, now_);
  });
}

void Control::on_late(JobId job, Rank rank, TensorId tensor, Duration waited) {
  // Repeated by the lane: one that finds the inbox full is not missed.
  (void)inbox_.request([this, job, rank, tensor, waited] {
    if (Job* found = find(job)) found->lane_late(rank, tensor, waited, now_);
  });
}

void Control::on_missing(JobId job, HostIndex peer, TensorId tensor, Sequence sequence, Duration waited) {
  // Repeated, too.
  (void)inbox_.request([this, job, peer, tensor, sequence, waited] {
    if (Job* found = find(job)) found->lane_misses(peer, tensor, sequence, waited, now_);
  });
}

void Control::on_flows_wanted(JobId job, HostIndex peer) {
  inbox_.event([this, job, peer] {
    if (Job* found = find(job)) found->lane_wants_flows(peer, now_);
  });
}

void Control::on_message_waits(JobId job, Rank rank, std::optional<Rank> peer, ports::MessageWait why,
                               Duration waited) {
  // Repeated by the lane: one that finds the inbox full is not missed.
  (void)inbox_.request([this, job, rank, peer, why, waited] {
    if (Job* found = find(job)) found->lane_message_waits(rank, peer, why, waited, now_);
  });
}

void Control::on_iteration(JobId job, Duration time) {
  // One that finds the inbox full is not missed.
  (void)inbox_.request([this, job, time] {
    if (Job* found = find(job)) found->lane_iteration(time, now_);
  });
}

void Control::on_progress(JobId job, const ports::LaneProgress& progress) {
  // One that finds the inbox full is not missed: the next one says more.
  (void)inbox_.request([this, job, progress] {
    if (Job* found = find(job)) found->lane_progress(progress, now_);
  });
}

void Control::on_job_closed(JobId job) {
  inbox_.event([this, job] {
    if (Job* found = find(job)) found->lane_closed(now_);
  });
}

// ---- control's thread: the loop ----

void Control::run() {
  while (!quit_) {
    wire_->wait(time_to_wait(), inbox_.wake_fd());
    turns_.fetch_add(1, std::memory_order_relaxed);
    if (quit_) return;
    now_ = clock_now();
    turn();
    if (stopping_ && ((jobs_.empty() && lane_calls_.empty()) || now_ >= stop_by_)) break;
  }
  // Nothing lingers in the sockets (law 14), so what was just said gets a moment to leave.
  if (!quit_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void Control::turn() {
  wire_->process(now_, [this](const std::string& from, std::span<const std::byte> bytes) { receive(from, bytes); });
  inbox_.run(kSlice);
  for (auto& [id, job] : jobs_) job->tick(now_);
  flush_lane();
  forget_finished_jobs();
  retry_deferred_joins();
  answer_questions();
  questions_.tick(now_);
}

Duration Control::time_to_wait() const {
  if (stopping_) return kStopTurn;
  if (!status_questions_.empty()) return Duration(0);
  if (!lane_calls_.empty()) return kLaneRetry;
  Duration shortest = questions_.idle() ? kIdleTurn : kQuestionTurn;
  for (const auto& [id, job] : jobs_) shortest = std::min(shortest, job->tick_interval());
  return shortest;
}

// A host of the fabric may send what it likes, and what has a million items takes long to read: what nobody waits for
// gets no further than this. Errors: kNotFound, of a job that is not here, or not yet; others for what makes no sense.
Status Control::check_envelope(const std::string& from, std::span<const std::byte> bytes) {
  const std::optional<Envelope> envelope = read_envelope(bytes);
  const bool ours = envelope && envelope->version == kWireVersion;
  if (ours && envelope->type == static_cast<std::uint64_t>(MessageType::kAsk)) {
    if (bytes.size() > kMaxAskMessage) return {Code::kCorrupt, fmt::format("a question of {} bytes", bytes.size())};
  } else if (ours && envelope->type == static_cast<std::uint64_t>(MessageType::kAnswer)) {
    if (!questions_.awaits(from, envelope->job.value)) return {Code::kNotFound, "nobody waits for its answer"};
  } else if (ours && envelope->type != static_cast<std::uint64_t>(MessageType::kJoin)) {
    const Job* job = find(envelope->job);
    if (job == nullptr) return {Code::kNotFound, "its job is not here"};
    const bool gathers = job->state() == Job::State::kGathering;
    // A member may have the roster before this host has it, and repeats itself.
    if (!job->listens_to(from) && gathers) return {Code::kNotFound, "its job has not begun here"};
    if (!job->listens_to(from)) return {Code::kPermissionDenied, "its host has no part in the job"};
  } else if (bytes.size() > kMaxJoinMessage) {
    return {Code::kCorrupt, fmt::format("{} bytes are too many for one who is not in a job yet", bytes.size())};
  }
  return {};
}

void Control::receive(const std::string& from, std::span<const std::byte> bytes) {
  const Status worth_reading = check_envelope(from, bytes);
  if (worth_reading.code() == Code::kNotFound) {
    ++counters_.dropped_stale;
    return;
  }
  const auto message = worth_reading.ok() ? decode(bytes) : Result<Message>(worth_reading);
  if (message.ok() && message->type >= MessageType::kAsk) {
    if (questions_.handle(from, *message, now_)) return;
  } else if (message.ok()) {
    Job* job = find(message->job);
    if (job == nullptr) {
      note_other_key(from, *message);  // a follower that is early repeats itself
      return;
    }
    if (job->handle(from, *message, now_)) return;
  } else if (message.status().code() == Code::kVersionMismatch) {
    for (auto& [id, job] : jobs_) job->hear_another_version(from, message.status(), now_);
    const auto envelope = read_envelope(bytes);
    questions_.hear_another_version(from, message.status(),
                                    envelope && envelope->type == static_cast<std::uint64_t>(MessageType::kAsk), now_);
  }
  ++counters_.dropped_malformed;
  if (log_gate_.open(now_)) {
    spdlog::warn("host {}: dropped a control message from host {}: {}", config_.host, from,
                 message.ok() ? fmt::format("type {} makes no sense here", static_cast<int>(message->type))
                              : message.status().to_string());
  }
}

Job* Control::find(JobId job) {
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : it->second.get();
}

Epoch Control::next_epoch() {
  last_epoch_ = Epoch(std::max(epoch_of_wall_clock(), last_epoch_.value + 1));
  return last_epoch_;
}

void Control::forget_finished_jobs() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (it->second->state() != Job::State::kDone) {
      ++it;
      continue;
    }
    for (auto& [id, session] : sessions_) {
      if (session.job == it->first && session.ended.ok()) session.ended = it->second->cause();
    }
    const std::string name = it->second->key().name;
    it = jobs_.erase(it);
    const bool another = std::ranges::any_of(jobs_, [&](const auto& job) { return job.second->key().name == name; });
    if (config_.job_ended && !another) config_.job_ended(name);
  }
}

void Control::retry_deferred_joins() {
  for (std::size_t left = deferred_joins_.size(); left > 0; --left) {
    DeferredJoin join = std::move(deferred_joins_.front());
    deferred_joins_.pop_front();
    do_join(std::move(join.request), join.deadline);
  }
}

// ---- control's thread: requests ----

void Control::do_join(ports::JoinRequest request, Time deadline) {
  const auto refuse = [&](Status status) { session_events_->joined(request.session, std::move(status)); };
  const std::string where = fmt::format("job '{}' on host {}", request.job, config_.host);
  if (stopping_) return refuse(Status(Code::kUnavailable, "the daemon stops", where, "start it again"));
  if (request.job.empty() || request.job.size() > protocol::kMaxName) {
    return refuse(Status(Code::kInvalidArgument, fmt::format("the job's name has {} bytes", request.job.size()), where,
                         fmt::format("set TENSORLANE_JOB to a name of 1 to {} bytes", protocol::kMaxName)));
  }
  const bool all_local = request.local_world_size == request.world_size;
  const auto leader = find_leader(*config_.fabric, config_.host, request.job, request.leader, all_local);
  if (!leader.ok()) return refuse(leader.status());
  const JobKey key{request.uid, *leader, request.leader_port, request.job};
  Job* job = find(key.id());
  if (job != nullptr && job->winding_down()) {
    if (now_ < deadline) return deferred_joins_.push_back({std::move(request), deadline});
    return refuse(Status(Code::kTimedOut, "the earlier job of this name has not ended on every host", where,
                         "wait, or set another TENSORLANE_JOB"));
  }
  if (!all_local && request.secret.empty()) {
    return refuse(Status(Code::kPermissionDenied, "a job that spans hosts needs a secret", where,
                         "set TENSORLANE_JOB_SECRET to the same value on every rank"));
  }
  if (job == nullptr) {
    auto made =
        std::make_unique<Job>(rules_, static_cast<JobEnvironment&>(*this), counters_, request, key, next_epoch(), now_);
    job = jobs_.emplace(key.id(), std::move(made)).first->second.get();
  }
  sessions_[request.session] = {key.id(), {}};
  job->join(request, now_);
}

// The job that the client takes part in, or why it does not.
Result<Job*> Control::job_of(ports::SessionId session) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end() && !it->second.ended.ok()) return it->second.ended;
  Job* job = it == sessions_.end() ? nullptr : find(it->second.job);
  if (job != nullptr) return job;
  return Status(Code::kInvalidArgument, "this client takes part in no job", config_.host,
                "join before registering tensors");
}

void Control::do_register(ports::SessionId session, std::uint32_t request, const std::string& group,
                          std::vector<protocol::TensorBody> tensors, const std::vector<std::uint32_t>& ranks) {
  const Result<Job*> job = job_of(session);
  if (!job.ok()) return session_events_->registered(session, request, job.status());
  (*job)->register_group(session, request, group, std::move(tensors), ranks, now_);
}

void Control::do_leave(ports::SessionId session, const Status& why) {
  std::erase_if(deferred_joins_, [&](const DeferredJoin& join) { return join.request.session == session; });
  const auto it = sessions_.find(session);
  Job* job = it == sessions_.end() || !it->second.ended.ok() ? nullptr : find(it->second.job);
  if (it != sessions_.end()) sessions_.erase(it);
  if (job == nullptr || !job->leave(session, why, now_)) {
    if (why.ok()) session_events_->left(session);
  }
}

// ---- control's thread: what jobs ask for ----

void Control::need(const std::string& host) {
  wire_->need(host);
}

void Control::release(const std::string& host) {
  wire_->release(host, now_);
}

bool Control::send(const std::string& host, const Message& message) {
  return wire_->send(host, encode(message));
}

void Control::offer(const std::string& host, const Message& message) {
  wire_->offer(host, encode(message));
}

bool Control::reachable(const std::string& host) {
  return wire_->reachable(host);
}

// What gathers here under the same name of the same user, and will never meet: for an error that says so.
std::vector<JobKey> Control::alike(const JobKey& key) const {
  std::vector<JobKey> others;
  for (const auto& [id, job] : jobs_) {
    const JobKey& other = job->key();
    if (job->state() == Job::State::kGathering && other != key && other.uid == key.uid && other.name == key.name)
      others.push_back(other);
  }
  return others;
}

// A host wants to take part in a job that this one does not lead. It may be early; or its ranks may have another user
// or port than those that wait here for it.
void Control::note_other_key(const std::string& from, const Message& join) {
  const std::optional<JobKey> key = key_of_join(join, config_.host);
  if (!key) return;
  for (auto& [id, job] : jobs_) job->hear_other_key(from, *key);
}

void Control::lane(JobId job, std::function<Status(ports::LanePort&)> call) {
  lane_calls_.push_back([this, job, call = std::move(call)] {
    const Status status = call(*lane_port_);
    if (status.code() == Code::kResourceExhausted) return false;
    if (!status.ok()) {
      if (Job* found = find(job)) found->fail(status, now_);
    }
    return true;
  });
}

void Control::tell(std::function<void(ports::SessionEvents&)> call) {
  lane_calls_.push_back([this, call = std::move(call)] {
    call(*session_events_);
    return true;
  });
}

void Control::flush_lane() {
  while (!lane_calls_.empty()) {
    const auto call = std::move(lane_calls_.front());
    lane_calls_.pop_front();
    if (call()) continue;
    lane_calls_.push_front(call);
    return;
  }
}

std::function<void()> Control::when_plan_in_force(JobId job, Epoch epoch, std::uint32_t version) {
  return [this, job, epoch, version] {
    inbox_.event([this, job, epoch, version] {
      Job* found = find(job);
      if (found != nullptr && found->epoch() == epoch) found->plan_in_force(version, now_);
    });
  };
}

}  // namespace tensorlane::control
