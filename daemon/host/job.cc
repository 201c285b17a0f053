#include "daemon/host/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "daemon/host/context.h"

namespace tensorlane::host {
namespace {

using Gate = engine::Admission::Gate;

constexpr std::size_t kTakeAtOnce = 64;

// Which operation an entry speaks of, and which parts of it.
std::string operation_text(const protocol::SubmissionEntry& entry) {
  if (entry.flags != protocol::kFlagParts) return fmt::format("sequence {}", entry.sequence);
  const protocol::PartRun run = protocol::parts_in(entry.sequence);
  return fmt::format("sequence {}, {} parts from {} on", protocol::sequence_in(entry.sequence), run.count, run.first);
}

}  // namespace

Job::Job(JobStart& start, const Context& context, std::shared_ptr<ports::JobMetrics> metrics)
    : spec_(start.spec),
      context_(context),
      local_ranks_(spec_.hosts[spec_.credentials.self.value].ranks),
      gate_(static_cast<std::uint32_t>(local_ranks_.size())),
      admission_(static_cast<std::uint32_t>(local_ranks_.size())),
      metrics_(std::move(metrics)) {
  regions_ = std::move(start.regions);
  everyone_ = std::move(start.everyone);
  sessions_.resize(local_ranks_.size());
  detached_.resize(local_ranks_.size());
  missed_.resize(spec_.hosts.size());
  collected_.reserve(local_ranks_.size() * kTakeAtOnce);
  messages_ = std::move(start.messages);
  message_tables_ = std::move(start.message_tables);
  if (spec_.hosts.size() == 1) desk_ = std::move(start.desk);
}

Job::~Job() {
  if (metrics_ != nullptr && reported_) report_end();
}

bool Job::retire() {
  if (metrics_ == nullptr) return true;
  if (!can_retire()) return false;
  report_end();
  metrics_.reset();
  return true;
}

// ---- commands ----

void Job::connect(std::size_t rails, Time now) {
  if (spec_.hosts.size() > 1 && rails < spec_.rails()) {
    return fail({Code::kMismatch,
                 fmt::format("the job has {} rails, host {} has {}", spec_.rails(),
                             spec_.hosts[spec_.credentials.self.value].name, rails),
                 fmt::format("job '{}'", spec_.name),
                 "give every host the same fabric file, and start its daemon again"});
  }
  state_ = State::kRunning;
  for (const Set& set : sets_) set.rails->open(now);
  look_if_settled();
}

void Job::leave(std::size_t lane, const Status& cause, Time now) {
  std::erase_if(sets_, [lane](const Set& set) { return set.lane == lane; });
  fail(cause);
  drain_if_closed(now);
}

Job::Set& Job::set_of(std::size_t lane) {
  const auto set = std::ranges::find(sets_, lane, &Set::lane);
  TL_ASSERT(set != sets_.end());
  return *set;
}

void Job::attach(Rank rank, std::shared_ptr<ports::ClientSession> session) {
  sessions_[local_index(rank)] = std::move(session);
  if (observed_) sessions_[local_index(rank)]->observe_waits(true);
}

void Job::abort(const Status& cause, Time now) {
  if (state_ == State::kClosing && abort_cause_) return;
  if (state_ == State::kClosed) return;
  abort_cause_ = cause;
  failed_ = true;
  context_.metrics->jobs_failed.add();
  close(now);
}

void Job::detach(Rank rank, Time now) {
  detached_[local_index(rank)] = true;
  if (state_ != State::kRunning && state_ != State::kNew) return;
  if (std::ranges::all_of(detached_, [](bool gone) { return gone; })) close(now);
}

void Job::close(Time now) {
  state_ = State::kClosing;
  for (const Set& set : sets_) set.rails->close(abort_cause_.has_value(), now);
  drain_if_closed(now);
}

// When no rail and no block of work touches a buffer any more, what was pending fails, and the buffers go back (law 7).
void Job::drain_if_closed(Time now) {
  if (state_ != State::kClosing || draining_ || under_way_ > 0 || closed_ < sets_.size()) return;
  draining_ = true;
  for (const Set& set : sets_) set.rails->drain(now);
  if (desk_ != nullptr && abort_cause_) {
    desk_->messages().drained();
    tell_messages(now);
  }
  look_if_drained();
}

void Job::look_if_drained() {
  if (!draining_ || state_ == State::kClosed || drained_ < sets_.size()) return;
  state_ = State::kClosed;
  local_queue_.clear();
  if (abort_cause_) {
    for (auto& session : sessions_) {
      if (session) session->fail(*abort_cause_);
    }
  }
  context_.listener->on_job_closed(id());
}

// ---- the rails ----

void Job::rails_closed(Time now) {
  ++closed_;
  drain_if_closed(now);
}

void Job::rails_drained(Time /*now*/) {
  ++drained_;
  look_if_drained();
}

void Job::settle(Time now) {
  ++settling_;
  for (const Set& set : sets_) set.rails->settle(settling_, now);
}

bool Job::settled() const {
  return std::ranges::all_of(sets_, [this](const Set& s) { return s.has_begun && s.settled.number == settling_; });
}

void Job::rails_settled(std::size_t lane, const Settled& settled, Time /*now*/) {
  Set& set = set_of(lane);
  set.has_begun = true;
  set.settled = settled;
  look_if_settled();
}

void Job::when_settled(std::function<void()> then) {
  waiting_.push_back({settling_, std::move(then)});
  look_if_settled();
}

void Job::look_if_settled() {
  if (state_ != State::kRunning || failed_) return;
  if (!connected_ && std::ranges::all_of(sets_, &Set::has_begun)) {
    connected_ = true;
    context_.listener->on_job_connected(id());
  }
  if (settled()) {
    give_back_vacant_tables();
    report_connected();
  }
  const auto done = [this](const Waiting& waiting) {
    return std::ranges::all_of(sets_,
                               [&](const Set& set) { return set.has_begun && set.settled.number >= waiting.number; });
  };
  while (!waiting_.empty() && done(waiting_.front())) {
    const std::function<void()> then = std::move(waiting_.front().then);
    waiting_.erase(waiting_.begin());
    then();
  }
}

void Job::rails_lost(Lost lost, const Status& cause, Time now) {
  if (state_ == State::kClosing || state_ == State::kClosed) return;
  // What came over a connection and was wrong is the cause itself, also where nothing is pending here: the peer, which
  // sees only the end, waits for it.
  if (cause.code() == Code::kCorrupt) return fail(cause);
  if (lost == Lost::kAwaited) return;  // an error says so where the peer does not come again
  // A peer whose ranks are done goes first; that is a failure only for what still needs it. What lanes say arrives in
  // no order: an operation may be complete, though that was not heard of yet.
  if (lost == Lost::kNeighbour && waiting_.empty()) {
    if (!departed_) departed_ = {cause, now};
    return;
  }
  if (!lost_) lost_ = {cause, now};
}

// A closed connection is a symptom: a peer that aborts closes its own. Control gets a moment to hear of the cause,
// which says more.
void Job::report_lost(Time now) {
  const bool idle = on_rails_ + admission_.held() + offered_ + messages_abroad_ == 0;
  if (departed_ && !lost_ && !idle) lost_ = departed_;
  if (lost_ && now - lost_->second >= Duration(spec_.detection.value / kSymptomShare)) fail(lost_->first);
}

// ---- sessions ----

std::size_t Job::collect(std::size_t most) {
  if (!collected_.empty() || state_ != State::kRunning) return 0;
  std::array<protocol::SubmissionEntry, kTakeAtOnce> entries;
  const auto ranks = static_cast<std::uint32_t>(sessions_.size());
  for (std::uint32_t i = 0; i < ranks && collected_.size() < most; ++i) {
    const std::uint32_t local = (first_rank_ + i) % ranks;
    if (!sessions_[local] || detached_[local]) continue;
    const std::size_t room = std::min(kTakeAtOnce, most - collected_.size());
    const std::size_t taken = sessions_[local]->take(std::span(entries).first(room));
    for (std::size_t e = 0; e < taken; ++e) collected_.emplace_back(local, entries[e]);
  }
  first_rank_ = (first_rank_ + 1) % ranks;
  return collected_.size();
}

bool Job::has_bound_collected() const {
  return std::ranges::all_of(collected_, [this](const auto& of_rank) {
    const auto& [local, entry] = of_rank;
    if (entry.flags == protocol::kSubmitMessage) return true;
    return entry.tensor < tensors_.size() && tensors_[entry.tensor].bound[local];
  });
}

void Job::submit_collected(Time now) {
  for (const auto& [local, entry] : collected_) {
    if (state_ == State::kRunning && !failed_) submit(local, entry, now);
  }
  collected_.clear();
}

void Job::submit(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now) {
  const auto broken = [&](const char* what) {
    fail({Code::kCorrupt,
          fmt::format("rank {} submitted {}: tensor {}, {}", local_ranks_[local].value, what, entry.tensor,
                      operation_text(entry)),
          fmt::format("job '{}'", spec_.name),
          "the client broke the session protocol; use the client library of this version"});
  };
  if (entry.flags == protocol::kSubmitMessage) {
    const char* what = submit_message(local, entry, now);
    return what != nullptr ? broken(what) : void();
  }
  if (entry.tensor >= tensors_.size()) return broken("an unknown tensor");
  LocalTensor& t = tensors_[entry.tensor];
  const protocol::PlanTensor& planned = plan_.tensors[entry.tensor];
  // A thread may have waited for the last operation when another one unregistered the tensor.
  if (!t.bound[local] && entry.flags != 0) return;
  if (!t.bound[local]) return broken("a tensor that it has not registered");
  if (entry.flags & protocol::kFlagBoost) return raise(local, t, planned, entry.sequence, now);
  if (entry.flags == protocol::kFlagWaited) return waited(local, planned.id, entry.sequence);
  if (entry.flags == protocol::kFlagParts) {
    const char* what = submit_parts(local, entry, now);
    return what != nullptr ? broken(what) : void();
  }
  if (entry.flags != 0) return broken("unknown flags");
  if (t.in_parts && entry.sequence == t.sequence[local]) {
    if (t.parts_over) return broken("an operation twice");
    return submit_rest(t, planned, now);
  }
  if (entry.sequence != t.sequence[local] + 1 || entry.sequence != t.completed + 1)
    return broken("an operation out of sequence");
  t.sequence[local] = entry.sequence;
  arrived(local, t, planned, now);
}

// A rank has begun an operation.
void Job::arrived(std::uint32_t local, LocalTensor& t, const protocol::PlanTensor& planned, Time now) {
  if (departed_ && !lost_) lost_ = {departed_->first, now};  // the cause may still be on its way
  t.submitted[local] = now;
  const bool waits = gate_of(planned) != Gate::kNone && t.early[local] == t.sequence[local];
  if (waits) admission_.waits(local, planned.operation_id());
  if (planned.in_batch()) {
    submit_member(local, planned, now);
    return waits ? begin_admitted(now) : void();
  }
  if (gate_of(planned) != Gate::kNone) admission_.submitted(local, planned.id);
  if (t.arrived++ == 0) {
    t.first_arrival = now;
    begin_pending(t, planned.id);
  }
  if (t.all_arrived()) all_arrived(t, planned, now);
  if (waits) begin_admitted(now);
}

// A wait blocks (law 9). It may come at any point of the operation, also before other ranks have submitted it, and
// before this one has: it may have told only of parts, which are not begun with. Who waits for a member of a batch
// waits for the batch.
void Job::raise(std::uint32_t local, LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t sequence,
                Time now) {
  if (sequence != t.completed + 1) return;
  const TensorId moving = tensor.operation_id();
  LocalTensor& operation = tensors_[moving.value];
  if (!operation.waited) operation.waited = now;
  if (t.sequence[local] != sequence) {
    t.early[local] = sequence;
  } else if (gate_of(tensor) != Gate::kNone) {
    admission_.waits(local, moving);
    begin_admitted(now);
  }
  if (sequence != t.completed + 1 || operation.boosted || context_.config->single_queue) return;
  operation.boosted = true;
  if (operation.task.step != LocalStep::kNone) local_queue_.raise(moving);
  for (const Set& set : sets_) set.rails->boost(moving, operation.next_sequence(), now);
}

void Job::all_arrived(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  t.ready = now;
  t.reported = Duration();
  t.iteration = iterations_.begin(t.iteration);
  note_iteration(tensor.id, now);
  if (context_.timeline->enabled() && t.members->here() > 1) {
    context_.timeline->record({.begin = t.first_arrival,
                               .length = now - t.first_arrival,
                               .job = id(),
                               .tensor = tensor.id,
                               .sequence = t.next_sequence(),
                               .cls = tensor.cls,
                               .phase = ports::TraceSpan::Phase::kWaitForData});
  }
  if (gate_of(tensor) != Gate::kBeforeLocal) return start(t, tensor, now);
  admission_.ready(tensor.id);
  begin_admitted(now);
}

// Begins what may: one after the other, though an operation may be over before this returns.
void Job::begin_admitted(Time now) {
  if (admitting_) return;
  admitting_ = true;
  for (TensorId id; state_ == State::kRunning && admission_.next(&id);) {
    LocalTensor& t = tensors_[id.value];
    const protocol::PlanTensor& tensor = plan_.tensors[id.value];
    if (admission_.gate() == Gate::kBeforeLocal) {
      start(t, tensor, now);
    } else {
      to_rails(t, tensor, now);
    }
  }
  admitting_ = false;
}

// Of an operation on this host.
LocalStep Job::first_step(const protocol::PlanTensor& tensor) const {
  const bool between_hosts = members_of(tensor).between_hosts(), alone = members_of(tensor).here() == 1;
  if (tensor.is_batch()) return LocalStep::kReduce;
  if (const auto exchange = exchange_of(tensor))
    return exchange->collected(between_hosts) > 0 ? LocalStep::kCollect : LocalStep::kNone;
  if (reduces(tensor.operation)) {
    if (!between_hosts) return alone ? LocalStep::kNone : LocalStep::kFinish;
    return alone && !tensor.fp32_contributions ? LocalStep::kNone : LocalStep::kReduce;
  }
  return tensor.operation == Operation::kAllgather && !alone ? LocalStep::kCollect : LocalStep::kNone;
}

// Whether ranks get something of what the rails have brought to the engines' buffer.
bool Job::spreads(const protocol::PlanTensor& tensor) const {
  if (const auto exchange = exchange_of(tensor)) return exchange->spread() > 0;
  if (tensor.is_batch()) return true;
  // What a push has summed is for pulls; the result of a reduce is in the root's buffer, if it is here.
  const bool leaves = tensor.operation == Operation::kBarrier || tensor.operation == Operation::kPush ||
                      tensor.operation == Operation::kReduce;
  return members_of(tensor).here() > 1 && !leaves;
}

void Job::start(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  start_local(t, tensor, first_step(tensor), now);
}

void Job::start_local(LocalTensor& t, const protocol::PlanTensor& tensor, LocalStep step, Time now) {
  const bool wide = step == LocalStep::kReduce && tensor.fp32_contributions;
  t.task = {step, t.next_sequence(), leader_of(tensor), wide ? t.own.wide : Buffer(), tensor.elements, 0, 0, 0};
  if (const auto exchange = exchange_of(tensor)) {
    const bool collects = step == LocalStep::kCollect;
    t.task.elements =
        (collects ? exchange->collected(t.members->between_hosts()) : exchange->spread()) * exchange->block();
  }
  if (step == LocalStep::kNone) return finish_step(t, tensor, now);
  local_queue_.push({tensor.cls, t.iteration, tensor.id, t.boosted});
}

// A step of local work is finished: on to the network, to the spreading of the result, or to the end.
void Job::finish_step(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  const bool spread_done = t.task.step == LocalStep::kSpread || t.task.step == LocalStep::kFinish;
  if (spread_done) return complete(t, tensor, true, now);
  if (t.members->between_hosts()) return to_network(t, tensor, now);
  if (!spreads(tensor) || exchanges(tensor.operation)) return complete(t, tensor, true, now);
  start_local(t, tensor, LocalStep::kSpread, now);
}

void Job::to_network(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  if (plan_.ordering == protocol::Ordering::kNegotiated && tensor.world == nullptr) {
    ++offered_;
    return sets_.front().rails->offer(tensor.id, now);
  }
  if (gate_of(tensor) != Gate::kBeforeNetwork) return to_rails(t, tensor, now);
  admission_.ready(tensor.id);
  begin_admitted(now);
}

void Job::rails_agreed(const engine::Agreed& agreed, Time now) {
  for (std::uint64_t bits = agreed.bits; bits != 0; bits &= bits - 1) {
    const std::uint32_t id = agreed.word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
    --offered_;
    to_rails(tensors_[id], plan_.tensors[id], now);
  }
}

// Every rail carries its slices of the same buffer.
void Job::to_rails(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  const Sequence sequence = t.next_sequence();
  t.sets_left = sets_.size();
  t.rails_ok = true;
  ++on_rails_;
  for (const Set& set : sets_) set.rails->start(tensor.id, sequence, t.in_parts, now);
  if (t.in_parts) tell_parts(t, tensor, t.parts, now);
  if (!t.boosted) return;
  for (const Set& set : sets_) set.rails->boost(tensor.id, sequence, now);
}

void Job::rails_completed(const engine::Complete& complete, Time now) {
  LocalTensor& t = tensors_[complete.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[complete.tensor.value];
  TL_ASSERT(t.sets_left > 0);
  t.rails_ok = t.rails_ok && complete.ok;
  if (complete.last_peer != Time()) {
    if (t.last_peer == Time() || complete.first_peer < t.first_peer) t.first_peer = complete.first_peer;
    t.last_peer = std::max(t.last_peer, complete.last_peer);
  }
  if (--t.sets_left > 0) return;
  --on_rails_;
  if (gate_of(tensor) != Gate::kNone) admission_.left_network(tensor.id);
  t.awaits_rest = t.rails_ok && t.in_parts && !t.parts_over;
  if (!t.awaits_rest) {
    if (!t.rails_ok || !spreads(tensor)) return this->complete(t, tensor, t.rails_ok, now);
    start_local(t, tensor, LocalStep::kSpread, now);
  }
  if (gate_of(tensor) != Gate::kNone) begin_admitted(now);
}

void Job::complete(LocalTensor& t, const protocol::PlanTensor& tensor, bool ok, Time now) {
  note_complete(t, tensor, ok, now);
  ++t.completed;
  t.arrived = 0;
  t.in_parts = t.awaits_rest = false;
  t.parts = 0;
  end_pending(t);
  t.boosted = false;
  t.waited.reset();
  t.task.step = LocalStep::kNone;
  if (tensor.is_batch()) {
    complete_members(t, tensor.id, ok, now);
  } else {
    for (const std::uint32_t local : t.members->locals()) {
      if (sessions_[local]) sessions_[local]->complete({tensor.id.value, ok ? Code::kOk : Code::kAborted, t.completed});
    }
  }
  t.first_peer = t.last_peer = Time();
  if (gate_of(tensor) == Gate::kNone || tensor.in_batch()) return;
  admission_.completed(tensor.id);
  begin_admitted(now);
}

void Job::note_complete(const LocalTensor& t, const protocol::PlanTensor& tensor, bool ok, Time now) {
  ports::ClassMetrics& metrics = context_.metrics->classes[tensor.cls.value];
  if (!tensor.is_batch()) {
    note_ranks(t, now);
    (ok ? metrics.tensors_completed : metrics.tensors_failed).add();
    metrics.completion.record(now - t.ready);
    if (ok && metrics_->iterations.value() <= t.completed) metrics_->iterations.set(t.completed + 1);
  }
  if (tensor.in_batch()) {
    metrics_->members.add();
  } else {
    ports::JobMetrics::PerClass& of_job = metrics_->classes[tensor.cls.value];
    of_job.operations.add();
    of_job.completion_ns.add(static_cast<std::uint64_t>((now - t.ready).value));
    const bool heard = t.last_peer != Time();
    metrics.straggler.record(std::max(t.ready, t.last_peer) -
                             (heard ? std::min(t.first_arrival, t.first_peer) : t.first_arrival));
  }
  if (!context_.timeline->enabled()) return;
  context_.timeline->record({.begin = t.ready,
                             .length = now - t.ready,
                             .job = id(),
                             .tensor = tensor.id,
                             .sequence = t.next_sequence(),
                             .cls = tensor.cls,
                             .phase = ports::TraceSpan::Phase::kOperation,
                             .bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(tensor.bytes(), UINT32_MAX))});
}

// ---- work ----

std::optional<ClassId> Job::next_work() const {
  if (state_ != State::kRunning) return std::nullopt;
  const std::optional<ClassId> copy = desk_ != nullptr ? desk_->messages().next_copy() : std::nullopt;
  if (local_queue_.empty()) return copy;
  const ClassId cls = local_queue_.top().cls;
  return copy && *copy < cls ? copy : cls;
}

void Job::choose_block(Time now, JobBlock& block) {
  ++under_way_;
  if (local_queue_.empty() || *next_work() < local_queue_.top().cls) return desk_->choose_block(block, id(), now);
  const LocalQueue::Key key = local_queue_.top();
  LocalTensor& t = tensors_[key.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[key.tensor.value];
  const Moved moved = add_block(t, tensor, block);
  if (t.task.all_given()) local_queue_.pop();
  block.tensor = key.tensor;
  block.reduced = moved.reduced;
  block.copied = moved.copied;
  block.span = {.begin = now,
                .job = id(),
                .tensor = key.tensor,
                .sequence = t.task.sequence,
                .cls = key.cls,
                .phase = moved.reduced > 0 ? ports::TraceSpan::Phase::kReduce : ports::TraceSpan::Phase::kCopy,
                .bytes = static_cast<std::uint32_t>(moved.reduced + moved.copied)};
}

void Job::block_done(const JobBlock& block, Time now) {
  TL_ASSERT(under_way_ > 0);
  --under_way_;
  if (state_ != State::kRunning) return drain_if_closed(now);
  if (block.message) {
    desk_->block_done(block);
    return tell_messages(now);
  }
  LocalTensor& t = tensors_[block.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[block.tensor.value];
  if (--t.task.blocks == 0 && t.task.all_given()) finish_step(t, tensor, now);
}

void Job::fail(const Status& cause) {
  if (failed_) return;
  failed_ = true;
  context_.listener->on_job_failed(id(), cause);
}

// ---- small answers ----

std::uint32_t Job::local_index(Rank rank) const {
  const auto index = std::ranges::find(local_ranks_, rank) - local_ranks_.begin();
  TL_ASSERT(index < std::ssize(local_ranks_));
  return static_cast<std::uint32_t>(index);
}

// Operations of a process set begin when they are ready: an order is one of operations of all ranks.
engine::Admission::Gate Job::gate_of(const protocol::PlanTensor& tensor) const {
  return tensor.world == nullptr ? admission_.gate() : Gate::kNone;
}

// The place of the member here whose buffer the engine sees: the root's where the operation has one here, else the
// first. Of an exchange whose buffer is the daemon's own, see exchange_of().
std::uint32_t Job::leader_of(const protocol::PlanTensor& tensor) const {
  if (!is_rooted(tensor.operation) || is_keyed(tensor.operation)) return 0;
  return members_of(tensor).place_of_number(tensor.root_rank.value).value_or(0);
}

// Nothing for other operations.
std::optional<protocol::HostExchange> Job::exchange_of(const protocol::PlanTensor& tensor) const {
  if (!exchanges(tensor.operation)) return std::nullopt;
  const Members& members = members_of(tensor);
  return members.exchange(protocol::exchange_of(tensor, members.world_size()));
}

// Of the member at this place here.
std::uint64_t Job::buffer_bytes(const protocol::PlanTensor& tensor, std::uint32_t place) const {
  if (!exchanges(tensor.operation)) return tensor.bytes();
  const Members& members = members_of(tensor);
  const protocol::Exchange exchange = protocol::exchange_of(tensor, members.world_size());
  return exchange.buffer(members.numbers()[place]) * dtype_size(tensor.dtype);
}

}  // namespace tensorlane::host
