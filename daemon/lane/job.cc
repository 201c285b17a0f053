#include "daemon/lane/job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace tensorlane::lane {
namespace {

constexpr std::size_t kActions = 1024;
constexpr std::int64_t kSymptomShare = 5;  // of the detection time, that a lost connection waits for its cause
constexpr std::size_t kTakeAtOnce = 64;

engine::EngineConfig engine_config(const ports::JobSpec& spec, const LaneConfig& config) {
  engine::EngineConfig e;
  e.job = spec.credentials.job;
  e.epoch = spec.credentials.epoch;
  e.hosts = static_cast<std::uint16_t>(spec.hosts.size());
  e.self = spec.credentials.self;
  e.world_size = spec.world_size;
  e.classes = config.classes;
  e.staging = config.staging;
  e.single_queue = config.single_queue;
  e.limits = config.job_limits;
  return e;
}

}  // namespace

Job::Job(ports::JobSpec spec, const Surroundings& around)
    : spec_(std::move(spec)),
      around_(around),
      local_ranks_(spec_.hosts[spec_.credentials.self.value].ranks),
      actions_(kActions) {
  for (Rank rank : local_ranks_) rank_numbers_.push_back(rank.value);
  sessions_.resize(local_ranks_.size());
  detached_.resize(local_ranks_.size());
  collected_.reserve(local_ranks_.size() * kTakeAtOnce);
  if (spec_.hosts.size() > 1) {
    const engine::EngineConfig config = engine_config(spec_, *around_.config);
    const std::size_t bytes = engine::Engine::staging_bytes(config).value;
    staging_storage_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    const Descriptor staging = around_.memory->add({staging_storage_.get(), bytes});
    staging_ = staging;
    engine_ = std::make_unique<engine::Engine>(config, staging);
  }
  metrics_ = std::make_shared<ports::JobMetrics>();
  metrics_->name = spec_.name;
  metrics_->id = id();
  around_.metrics->job_list.add(metrics_);
  around_.metrics->jobs_started.add();
}

Job::~Job() {
  around_.metrics->job_list.remove(metrics_);
  if (engine_) around_.memory->remove(staging_.region);
  for (LocalTensor& local : tensors_) {
    if (local.buffer.length != 0) around_.memory->remove(local.buffer.region);
    if (!local.wide_storage.empty()) around_.memory->remove(local.wide.region);
  }
}

// ---- commands ----

void Job::connect(Time now) {
  if (spec_.hosts.size() == 1) {
    state_ = State::kRunning;
    around_.listener->on_job_connected(id());
    return;
  }
  if (around_.config->resume_flows) spec_.credentials.resume_within = spec_.detection;
  around_.transport->add_job(spec_.credentials);
  map(around_.memory->resolve(staging_));
  const std::size_t data_flows = around_.config->single_queue ? 1 : around_.config->classes;
  const Time deadline = now + spec_.detection * 3;
  for (std::uint16_t peer = 0; peer < spec_.hosts.size(); ++peer) {
    if (peer == spec_.credentials.self.value) continue;
    for (std::size_t c = 0; c <= data_flows; ++c) {
      const ClassId cls = c == data_flows ? kControlClass : ClassId(static_cast<std::uint8_t>(c));
      const ports::FlowKey flow{id(), HostIndex(peer), cls};
      ++flows_wanted_;
      if (!dials(flow.peer)) continue;  // the peer comes to us
      const Status status =
          around_.transport->connect(flow, spec_.hosts[peer].address, spec_.hosts[peer].data_port, deadline);
      if (!status.ok()) return fail(status);
      ++flows_open_;
    }
  }
}

void Job::attach(Rank rank, std::shared_ptr<ports::ClientSession> session) {
  sessions_[local_index(rank)] = std::move(session);
}

void Job::apply_plan(protocol::Plan plan) {
  if (engine_) {
    const Status status = engine_->apply_plan(plan);
    if (!status.ok()) return fail(status);
  }
  plan_ = std::move(plan);
  const std::size_t known = tensors_.size();
  tensors_.resize(plan_.tensors.size());
  for (std::size_t i = known; i < tensors_.size(); ++i) {
    tensors_[i].bound.resize(local_ranks_.size());
    tensors_[i].buffers.resize(local_ranks_.size());
    tensors_[i].sequence.resize(local_ranks_.size());
    around_.timeline->name(id(), plan_.tensors[i].id, plan_.tensors[i].name.c_str());
  }
  local_queue_.reserve(tensors_.size());
}

void Job::bind(Rank rank, TensorId tensor, const ports::BufferPlace& place) {
  const std::uint32_t local = local_index(rank);
  const protocol::PlanTensor& planned = plan_.tensors[tensor.value];
  LocalTensor& t = tensors_[tensor.value];
  if (!sessions_[local]) return;
  t.bound[local] = true;
  if (planned.operation == Operation::kBarrier) return;  // moves nobody's memory
  t.buffers[local] = sessions_[local]->map(place);
  if (t.buffers[local].size() != planned.elements * dtype_size(planned.dtype)) {
    return fail({Code::kCorrupt,
                 fmt::format("rank {} registered tensor '{}' outside its arenas", rank.value, planned.name),
                 fmt::format("job '{}'", spec_.name), "use memory of tl_alloc for registered tensors"});
  }
  if (local == leader_of(planned)) {
    t.buffer = around_.memory->add(t.buffers[local]);
    map(sessions_[local]->segment(place));
  }
  if (engine_ && engine::needs_wide(planned, static_cast<std::uint16_t>(spec_.hosts.size())) &&
      t.wide_storage.empty()) {
    t.wide_storage.resize(planned.elements * sizeof(float));
    t.wide = around_.memory->add(t.wide_storage);
    map(t.wide_storage);
  }
}

// Memory that goes between hosts.
void Job::map(std::span<std::byte> bytes) {
  if (!engine_) return;
  const Status mapped = around_.transport->map(id(), bytes);
  if (mapped.ok()) return;
  // Every rank of the job reads this, on whatever host.
  const std::string& host = spec_.hosts[spec_.credentials.self.value].name;
  fail({mapped.code(), mapped.what(), fmt::format("host {}, {}", host, mapped.where()), mapped.fix()});
}

void Job::abort(const Status& cause, Time now) {
  if (state_ == State::kClosing && abort_cause_) return;
  if (state_ == State::kClosed) return;
  abort_cause_ = cause;
  failed_ = true;
  around_.metrics->jobs_failed.add();
  state_ = State::kClosing;
  if (engine_) feed({.kind = engine::Event::Kind::kAbort}, now);
  close_flows();
  if (flows_open_ == 0) drained(now);
}

void Job::detach(Rank rank) {
  detached_[local_index(rank)] = true;
  if (state_ != State::kRunning && state_ != State::kConnecting) return;
  if (!std::ranges::all_of(detached_, [](bool gone) { return gone; })) return;
  state_ = State::kClosing;
  close_flows();
  if (flows_open_ == 0) drained(Time());
}

void Job::close_flows() {
  if (engine_) around_.transport->remove_job(id());
}

// Nothing outside touches a buffer any more: what was pending fails, and the buffers go back (law 7).
void Job::drained(Time now) {
  if (state_ == State::kClosed) return;
  if (engine_) around_.transport->unmap(id());
  if (engine_ && abort_cause_) {
    feed({.kind = engine::Event::Kind::kDrained}, now);
  }
  state_ = State::kClosed;
  publish_counts();
  local_queue_.clear();
  if (abort_cause_) {
    for (auto& session : sessions_) {
      if (session) session->fail(*abort_cause_);
    }
  }
  around_.listener->on_job_closed(id());
}

// ---- transport ----

Result<std::span<std::byte>> Job::landing(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  if (header.payload_bytes == 0) return std::span<std::byte>();
  Result<Descriptor> place = engine_->landing(flow.peer, header);
  if (!place.ok()) {
    around_.metrics->protocol_errors.add();
    return place.status();
  }
  return around_.memory->resolve(*place);
}

void Job::frame_arrived(const ports::FlowKey& flow, const protocol::FrameHeader& header, Time now) {
  ports::ClassMetrics& metrics = around_.metrics->classes[ports::metrics_slot(flow.cls)];
  metrics.operations_received.add();
  metrics.bytes_received.add(header.payload_bytes);
  feed({.kind = engine::Event::Kind::kFrameArrived, .frame = {flow.peer, header}}, now);
}

void Job::sent(std::uint64_t token, Time now) {
  feed({.kind = engine::Event::Kind::kSendDone, .token = token}, now);
}

void Job::flow_up(const ports::FlowKey& flow) {
  if (!dials(flow.peer)) ++flows_open_;
  const ports::FlowStats stats = around_.transport->stats(flow);
  around_.metrics->flows.up(flow, {spec_.name, spec_.hosts[flow.peer.value].name, flow.cls, stats.effective_dscp,
                                   stats.effective_pcp, stats.describe});
  if (++flows_up_ == flows_wanted_ && state_ == State::kConnecting) {
    state_ = State::kRunning;
    around_.listener->on_job_connected(id());
  }
}

void Job::flow_down(const ports::FlowKey& flow, const Status& cause, Time now) {
  TL_ASSERT(flows_open_ > 0);
  --flows_open_;
  around_.metrics->flows.down(flow);
  if (state_ == State::kClosing) {
    if (flows_open_ == 0) drained(now);
    return;
  }
  const Status named =
      cause.ok()
          ? Status(Code::kUnavailable, fmt::format("host {} closed its connection", spec_.hosts[flow.peer.value].name),
                   fmt::format("job '{}'", spec_.name), "look at that host's daemon log for why it left the job")
          : Status(cause.code(),
                   fmt::format("connection to host {} was lost: {}", spec_.hosts[flow.peer.value].name, cause.what()),
                   cause.where(), cause.fix());
  // A peer whose ranks are done goes first; that is a failure only for what still needs it.
  if (state_ == State::kRunning && engine_->counters().operations_pending == 0) {
    if (!departed_) departed_ = named;
    return;
  }
  if (!lost_) lost_ = {named, now};
}

// A closed connection is a symptom: a peer that aborts closes its own. Control gets a moment to hear of the cause,
// which says more.
void Job::report_lost(Time now) {
  if (lost_ && now - lost_->second >= Duration(spec_.detection.value / kSymptomShare)) fail(lost_->first);
}

// ---- sessions ----

std::size_t Job::collect() {
  collected_.clear();
  if (state_ != State::kRunning) return 0;
  std::array<protocol::SubmissionEntry, kTakeAtOnce> entries;
  for (std::uint32_t local = 0; local < sessions_.size(); ++local) {
    if (!sessions_[local] || detached_[local]) continue;
    const std::size_t taken = sessions_[local]->take(entries);
    for (std::size_t i = 0; i < taken; ++i) collected_.emplace_back(local, entries[i]);
  }
  return collected_.size();
}

void Job::submit_collected(Time now) {
  for (const auto& [local, entry] : collected_) {
    if (state_ == State::kRunning && !failed_) submit(local, entry, now);
  }
}

void Job::submit(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now) {
  const auto broken = [&](const char* what) {
    fail({Code::kCorrupt,
          fmt::format("rank {} submitted {}: tensor {}, sequence {}", rank_numbers_[local], what, entry.tensor,
                      entry.sequence),
          fmt::format("job '{}'", spec_.name),
          "the client broke the session protocol; use the client library of this version"});
  };
  if (entry.tensor >= tensors_.size()) return broken("an unknown tensor");
  LocalTensor& t = tensors_[entry.tensor];
  const protocol::PlanTensor& planned = plan_.tensors[entry.tensor];
  if (!t.bound[local]) return broken("a tensor that it has not registered");
  if (entry.flags & protocol::kFlagRaise) return raise(t, planned, entry.sequence, now);
  if (entry.flags != 0) return broken("unknown flags");
  if (entry.sequence != t.sequence[local] + 1 || entry.sequence != t.completed + 1)
    return broken("an operation out of sequence");
  if (departed_ && engine_ && !lost_) lost_ = {*departed_, now};  // the cause may still be on its way
  t.sequence[local] = entry.sequence;
  if (t.arrived++ == 0) t.first_arrival = now;
  if (t.arrived == local_ranks_.size()) all_arrived(t, planned, now);
}

// A wait blocks (law 9). It may come at any point of the operation, also before other ranks have submitted it.
void Job::raise(LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t sequence, Time now) {
  if (sequence != t.completed + 1 || t.raised || around_.config->single_queue) return;
  t.raised = true;
  if (t.task.step != LocalStep::kNone) local_queue_.raise(tensor.id);
  if (engine_) feed({.kind = engine::Event::Kind::kRaise, .raise = {tensor.id, Sequence(sequence)}}, now);
}

void Job::all_arrived(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  t.ready = now;
  t.reported = Duration();
  if (around_.timeline->enabled() && local_ranks_.size() > 1) {
    around_.timeline->record({.begin = t.first_arrival,
                              .length = now - t.first_arrival,
                              .job = id(),
                              .tensor = tensor.id,
                              .sequence = Sequence(t.completed + 1),
                              .cls = tensor.cls,
                              .phase = ports::TraceSpan::Phase::kWaitForData});
  }
  const bool alone = local_ranks_.size() == 1;
  switch (tensor.operation) {
    case Operation::kAllreduce:
    case Operation::kPush:
      if (!engine_) return start_local(t, tensor, alone ? LocalStep::kNone : LocalStep::kFinish);
      return start_local(t, tensor, alone && !tensor.wide_contributions ? LocalStep::kNone : LocalStep::kReduce);
    case Operation::kAllgather:
      return start_local(t, tensor, alone ? LocalStep::kNone : LocalStep::kCollect);
    case Operation::kBroadcast:
    case Operation::kPull:
    case Operation::kBarrier:
      return start_local(t, tensor, LocalStep::kNone);
  }
}

void Job::start_local(LocalTensor& t, const protocol::PlanTensor& tensor, LocalStep step) {
  const bool wide = step == LocalStep::kReduce && tensor.wide_contributions;
  t.task = {step, Sequence(t.completed + 1), leader_of(tensor), wide ? Buffer(t.wide_storage) : Buffer(), 0};
  if (step == LocalStep::kNone) return finish_step(t, tensor, t.ready);
  local_queue_.push({tensor.cls, t.task.sequence, tensor.id, t.raised});
}

// A step of local work is finished: on to the network, to the spreading of the result, or to the end.
void Job::finish_step(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  const bool spread_done = t.task.step == LocalStep::kSpread || t.task.step == LocalStep::kFinish;
  if (spread_done) return complete(t, tensor, true, now);
  if (engine_) return to_engine(t, tensor, now);
  if (local_ranks_.size() == 1 || tensor.operation == Operation::kBarrier) return complete(t, tensor, true, now);
  start_local(t, tensor, LocalStep::kSpread);
}

void Job::to_engine(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  engine::Event event{.kind = engine::Event::Kind::kTensorReady};
  event.tensor_ready = {tensor.id, Sequence(t.completed + 1), t.buffer, t.wide};
  feed(event, now);
  if (t.raised) feed({.kind = engine::Event::Kind::kRaise, .raise = {tensor.id, Sequence(t.completed + 1)}}, now);
}

void Job::complete(LocalTensor& t, const protocol::PlanTensor& tensor, bool ok, Time now) {
  ports::ClassMetrics& metrics = around_.metrics->classes[tensor.cls.value];
  (ok ? metrics.tensors_completed : metrics.tensors_failed).add();
  metrics.completion.record(now - t.ready);
  if (around_.timeline->enabled()) {
    around_.timeline->record({.begin = t.ready,
                              .length = now - t.ready,
                              .job = id(),
                              .tensor = tensor.id,
                              .sequence = Sequence(t.completed + 1),
                              .cls = tensor.cls,
                              .phase = ports::TraceSpan::Phase::kOperation,
                              .bytes = static_cast<std::uint32_t>(
                                  std::min<std::uint64_t>(tensor.elements * dtype_size(tensor.dtype), UINT32_MAX))});
  }
  ++t.completed;
  t.arrived = 0;
  t.raised = false;
  t.task.step = LocalStep::kNone;
  for (auto& session : sessions_) {
    if (session) session->complete({tensor.id.value, ok ? Code::kOk : Code::kAborted, t.completed});
  }
}

// ---- work ----

std::optional<ClassId> Job::next_work(Time now) {
  if (state_ != State::kRunning) return std::nullopt;
  if (!work_ && engine_) {
    work_.emplace();
    if (!engine_->pick_work(now, &*work_)) work_.reset();
  }
  if (work_ && (local_queue_.empty() || work_->cls <= local_queue_.top().cls)) return work_->cls;
  if (!local_queue_.empty()) return local_queue_.top().cls;
  return std::nullopt;
}

ports::TraceSpan Job::do_work(Time now) {
  if (work_ && (local_queue_.empty() || work_->cls <= local_queue_.top().cls)) {
    const engine::Work work = *work_;
    work_.reset();
    return do_engine_block(work, now);
  }
  return do_local_block(now);
}

ports::TraceSpan Job::do_local_block(Time now) {
  const LocalQueue::Key key = local_queue_.top();
  LocalTensor& t = tensors_[key.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[key.tensor.value];
  std::uint64_t reduced = 0, copied = 0;
  const bool done =
      advance(t.task, tensor, {t.buffers, rank_numbers_, spec_.world_size}, *around_.reducer, &reduced, &copied);
  around_.metrics->bytes_reduced.add(reduced);
  around_.metrics->bytes_copied.add(copied);
  const ports::TraceSpan span{.begin = now,
                              .job = id(),
                              .tensor = key.tensor,
                              .sequence = t.task.sequence,
                              .cls = key.cls,
                              .phase = reduced > 0 ? ports::TraceSpan::Phase::kReduce : ports::TraceSpan::Phase::kCopy,
                              .bytes = static_cast<std::uint32_t>(reduced + copied)};
  if (!done) return span;
  local_queue_.pop();
  finish_step(t, tensor, now);
  return span;
}

ports::TraceSpan Job::do_engine_block(const engine::Work& work, Time now) {
  std::array<ports::ReduceSource, engine::Work::kMaxSources> sources;
  bool resolved = true;
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    const std::span<std::byte> bytes = around_.memory->resolve(work.sources[i].data);
    resolved = resolved && !bytes.empty();
    sources[i] = {bytes.data(), work.sources[i].dtype};
  }
  const std::span<std::byte> out = around_.memory->resolve(work.out);
  TL_ASSERT(resolved && !out.empty());
  around_.reducer->reduce(out.data(), work.out_dtype, std::span(sources).first(work.source_count), work.elements,
                          work.divisor);
  const std::uint64_t bytes = work.elements * dtype_size(work.out_dtype) * work.source_count;
  around_.metrics->slices_reduced.add();
  around_.metrics->bytes_reduced.add(bytes);
  feed({.kind = engine::Event::Kind::kWorkDone, .token = work.token}, now);
  return {.begin = now,
          .job = id(),
          .tensor = work.tensor,
          .sequence = work.sequence,
          .cls = work.cls,
          .phase = ports::TraceSpan::Phase::kReduce,
          .bytes = static_cast<std::uint32_t>(bytes)};
}

// ---- egress ----

Job::Sent Job::send(ClassId cls, Bytes credit, Time now) {
  Sent sent;
  if (state_ != State::kRunning || !engine_) return sent;
  const bool control = cls == kControlClass;
  ports::ClassMetrics& metrics = around_.metrics->classes[ports::metrics_slot(cls)];
  HostIndex& last = last_peer_[ports::metrics_slot(cls)];
  engine::Send send;
  HostIndex peer, first_blocked;
  bool blocked = false;
  std::uint64_t payload_bytes = 0;
  while (engine_->next_flow(now, cls, last, &peer)) {
    const ports::FlowKey flow{id(), peer, cls};
    if (!around_.transport->writable(flow)) {
      if (blocked && peer == first_blocked) break;  // once around: nobody can take more
      if (!blocked) first_blocked = peer;
      blocked = true;
      last = peer;
      continue;
    }
    // One operation at a turn: peers share the window evenly, and writable() speaks for no more than one.
    const Bytes left = credit - sent.bytes;
    const bool afforded = !control || left.value >= protocol::kFrameHeaderBytes;
    if (!afforded || engine_->pick(now, {peer, cls}, left, std::span(&send, 1)) == 0) {
      sent.more = true;  // this peer is next, too, when there is credit
      break;
    }
    last = peer;
    blocked = false;
    const std::span<std::byte> payload = around_.memory->resolve(send.payload);
    TL_ASSERT(payload.size() == send.header.payload_bytes);
    around_.transport->send(flow, {send.header, payload, send.token, granted(peer, send.header)});
    payload_bytes += payload.size();
    sent.bytes += Bytes(control ? protocol::kFrameHeaderBytes : payload.size());
    note_wait(send, flow, now);
    ++sent.operations;
  }
  if (sent.operations == 0) return sent;
  metrics.operations_sent.add(sent.operations);
  metrics.bytes_sent.add(payload_bytes);
  if (control) return sent;
  metrics_->classes[cls.value].bytes_sent.add(payload_bytes);
  for (std::uint8_t c = 0; c < cls.value; ++c)
    metrics_->classes[c].bytes_demoted.set(engine_->counters().demoted_bytes[c]);
  return sent;
}

// What is behind the grant that a frame gives, for a transport that lets the peer write there.
std::span<const std::span<std::byte>> Job::granted(HostIndex peer, const protocol::FrameHeader& header) {
  if (!around_.transport->wants_places() || protocol::given_grant(header) == 0) return {};
  std::array<Descriptor, kMaxPlaces> places;
  const std::size_t count = engine_->granted(peer, header, places);
  for (std::size_t i = 0; i < count; ++i) places_[i] = around_.memory->resolve(places[i]);
  return std::span(places_).first(count);
}

void Job::note_wait(const engine::Send& send, const ports::FlowKey& flow, Time now) {
  const Duration waited = now - send.eligible;
  around_.metrics->classes[ports::metrics_slot(flow.cls)].queue_wait.record(waited);
  if (send.header.payload_bytes == 0 || !around_.timeline->enabled()) return;  // control would bury the tensors
  around_.timeline->record({.begin = send.eligible,
                            .length = waited,
                            .job = id(),
                            .tensor = send.header.tensor,
                            .sequence = send.header.sequence,
                            .cls = flow.cls,
                            .phase = ports::TraceSpan::Phase::kQueue,
                            .peer = flow.peer,
                            .bytes = send.header.payload_bytes});
}

// ---- lateness and failure ----

void Job::report_late(Time now) {
  report_lost(now);
  if (state_ != State::kRunning) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    LocalTensor& t = tensors_[i];
    Time since = t.first_arrival;
    if (t.arrived == local_ranks_.size()) continue;
    if (t.arrived == 0 && !(engine_ && engine_->awaited(plan_.tensors[i].id, &since))) continue;
    const Duration waited = now - since;
    if (waited < t.reported + around_.config->late_after) continue;
    t.reported = waited;
    for (std::uint32_t local = 0; local < local_ranks_.size(); ++local) {
      if (t.sequence[local] > t.completed) continue;
      around_.metrics->late_reports.add();
      around_.listener->on_late(id(), local_ranks_[local], plan_.tensors[i].id, waited);
    }
  }
}

void Job::publish_counts() {
  if (!engine_) return;
  const engine::EngineCounters& now = engine_->counters();
  around_.metrics->slices_sent.add(now.slices_sent - published_.slices_sent);
  around_.metrics->stale_grants.add(now.stale_grants - published_.stale_grants);
  published_ = now;
}

void Job::fail(const Status& cause) {
  if (failed_) return;
  failed_ = true;
  around_.listener->on_job_failed(id(), cause);
}

// ---- engine ----

void Job::feed(const engine::Event& event, Time now) {
  std::size_t taken = 0;
  do {
    taken = engine_->step(now, std::span(&event, 1), actions_);
    while (!actions_.empty()) {
      const engine::Action action = actions_.front();
      actions_.pop();
      carry_out(action, now);
    }
  } while (taken == 0);
}

void Job::carry_out(const engine::Action& action, Time now) {
  if (action.kind == engine::Action::Kind::kProtocolError) {
    around_.metrics->protocol_errors.add();
    const engine::ProtocolError& error = action.error;
    return fail(
        {Code::kCorrupt,
         fmt::format("host {} broke the protocol: {}", spec_.hosts[error.peer.value].name, error.reason),
         fmt::format("job '{}', tensor {}, sequence {}, slice {}, grant {:#x}", spec_.name, error.header.tensor.value,
                     error.header.sequence.value, error.header.slice, error.header.grant),
         "install the same tensorlane version on every host"});
  }
  LocalTensor& t = tensors_[action.complete.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[action.complete.tensor.value];
  if (!action.complete.ok || local_ranks_.size() == 1 || tensor.operation == Operation::kBarrier)
    return complete(t, tensor, action.complete.ok, now);
  start_local(t, tensor, LocalStep::kSpread);
}

// ---- small answers ----

std::uint32_t Job::local_index(Rank rank) const {
  const auto index = std::ranges::find(local_ranks_, rank) - local_ranks_.begin();
  TL_ASSERT(index < std::ssize(local_ranks_));
  return static_cast<std::uint32_t>(index);
}

// The local rank whose buffer the engine sees: the root of a broadcast where it lives here, else the first.
std::uint32_t Job::leader_of(const protocol::PlanTensor& tensor) const {
  if (tensor.operation != Operation::kBroadcast) return 0;
  return std::ranges::count(local_ranks_, tensor.root_rank) > 0 ? local_index(tensor.root_rank) : 0;
}

}  // namespace tensorlane::lane
