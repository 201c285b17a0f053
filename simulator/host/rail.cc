#include "simulator/host/rail.h"

#include <algorithm>
#include <sstream>

#include "daemon/engine_log/replay.h"

namespace tensorlane::simulator {

using engine::Action;
using engine::Event;

namespace {

// Keeps a log in memory.
class TextSink final : public engine_log::Sink {
 public:
  TextSink(std::string& log, Findings& findings) : log_(log), findings_(findings) {}
  Status write(std::span<const std::byte> bytes) override {
    log_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  void stopped(const Status& why) override { findings_.fail("digest", "no log: {}", why.to_string()); }

 private:
  std::string& log_;
  Findings& findings_;
};

constexpr Bytes kLogLimit = mib(256);

}  // namespace

Rail::Rail(HostIndex self, RailIndex rail, Around around, Random random)
    : self_(self),
      rail_(rail),
      around_(around),
      random_(random),
      config_(around.scenario.engine),
      limits_(self, around.scenario, around.findings),
      order_(self, around.scenario, limits_, around.findings),
      actions_(around.scenario.lane.action_ring),
      planned_(around.scenario.tensors_at_start),
      flows_(around.scenario.hosts() * kLevels, FlowState(around.scenario.lane.flow_room)),
      sends_unfinished_(around.scenario.plan.tensors.size()) {
  config_.self = self;
  last_peer_.fill(self);
  config_.rail = rail;
  staging_ = around_.memory.allocate(engine::Engine::staging_bytes(config_).value);
  std::unique_ptr<engine_log::Recorder> recorder;
  if (around_.scenario.record) {
    recorder = std::make_unique<engine_log::Recorder>(std::make_unique<TextSink>(log_, around_.findings), kLogLimit,
                                                      "simulated", std::to_string(self.value));
  }
  engine_ = std::make_unique<engine_log::RecordedEngine>(config_, staging_, std::move(recorder));
  staging_checker_ = std::make_unique<StagingChecker>(self, staging_, around_.findings);
  const Status status = engine_->apply_plan(around_.scenario.plan_of(planned_));
  if (!status.ok())
    around_.findings.fail("protocol", "host {}: the plan was refused: {}", self.value, status.to_string());
  around_.network.attach(self, this);
}

// ---- a plan that grows ----

void Rail::grow_plan(std::size_t tensors, std::function<void()> then) {
  growths_.emplace_back(tensors, std::move(then));
  wake();
}

void Rail::apply_growths() {
  while (!growths_.empty()) {
    const auto [tensors, then] = std::move(growths_.front());
    growths_.pop_front();
    // Two growths with overlapping spreads: what the later one brought is known.
    if (tensors <= planned_) {
      then();
      continue;
    }
    if (planned_ > 0 && random_.chance(0.3)) offer_changed_plan(tensors);
    planned_ = tensors;
    const Status status = engine_->apply_plan(around_.scenario.plan_of(tensors));
    if (!status.ok())
      around_.findings.fail("protocol", "host {}: the plan was refused: {}", self_.value, status.to_string());
    around_.trace.line(self_, "plan of {} tensors", tensors);
    then();
  }
}

// A plan that would switch a tensor's pattern or slices while its operations run must be refused, and nothing of it
// kept (law 1).
void Rail::offer_changed_plan(std::size_t tensors) {
  protocol::Plan plan = around_.scenario.plan_of(tensors);
  protocol::PlanTensor& tensor = plan.tensors[random_.below(planned_)];
  if (tensor.operation == Operation::kBarrier || random_.chance(0.5)) {
    const auto other = static_cast<std::size_t>(tensor.pattern) + 1 + random_.below(protocol::kPatternCount - 1);
    tensor.pattern = static_cast<protocol::Pattern>(other % protocol::kPatternCount);
  } else {
    tensor.slice_elements += 16;
  }
  if (!engine_->apply_plan(plan).ok()) return;
  around_.findings.fail("protocol", "host {}: a plan that cuts or moves tensor {} otherwise was taken", self_.value,
                        tensor.id.value);
}

// ---- what arrives ----

void Rail::on_packet(const Packet& packet) {
  if (around_.host.dead || !around_.host.running()) return;
  inbox_.push_back(packet);
  wake();
}

void Rail::on_acknowledged(const FramePtr& frame) {
  if (around_.host.dead || !around_.host.running()) return;
  in_flight_[level_of(frame->cls)] -= frame->payload.size();
  flows_[flow_index(frame->to, level_of(frame->cls))].in_flight -= frame->payload.size();
  wake();
}

void Rail::submit(const Event& event) {
  pending_.push_back(event);
  if (config_.reclassifies && random_.chance(0.2)) reclassify();
  wake();
}

// Some tensor, in the middle of an operation or not: what a threshold that moves, or an order that is observed, does.
void Rail::reclassify() {
  const protocol::PlanTensor& tensor =
      around_.scenario.plan.tensors[random_.below(std::min(planned_, around_.scenario.plan.tensors.size()))];
  const ClassId cls(static_cast<std::uint8_t>(random_.below(config_.classes)));
  const float urgency = random_.chance(0.5) ? tensor.urgency : static_cast<float>(random_.below(1000)) / 1000.0f;
  engine_->set_priority(tensor.id, urgency, cls);
  order_.prioritised(tensor.id, urgency, cls);
}

void Rail::wake() {
  if (scheduled_) return;
  scheduled_ = true;
  around_.events.after(random_.between(Duration(0), around_.scenario.lane.poll_delay), [this] {
    scheduled_ = false;
    poll();
  });
}

// ---- the loop ----

void Rail::poll() {
  if (around_.host.dead || around_.host.frozen || !around_.host.running() || around_.findings.any()) return;
  apply_growths();
  receive();
  tell_delivered();
  // While blocks of arithmetic are being done payload may land, but nothing is fed (engine.h, pick_work).
  if (!working_.empty()) return;
  step_all();
  if (!around_.host.running()) return;
  start_work();
  send_all();
  replay();
}

void Rail::receive() {
  while (!inbox_.empty() && around_.host.running()) {
    const Packet packet = std::move(inbox_.front());
    inbox_.pop_front();
    receive_packet(packet);
    if (working_.empty() && random_.chance(around_.scenario.lane.step_early)) step_all();
  }
}

void Rail::receive_packet(const Packet& packet) {
  FlowState& flow = flows_[flow_index(packet.from, packet.level)];
  Receiving& receiving = flow.receiving;
  if (packet.begin == 0) {
    receiving = {.open = true};
    if (packet.frame->header.payload_bytes > 0) {
      const Result<Descriptor> place = engine_->landing(packet.from, packet.frame->header);
      if (!place.ok()) {
        around_.findings.fail("protocol", "host {}: payload of host {} was refused: {}", self_.value, packet.from.value,
                              place.status().to_string());
        return;
      }
      receiving.place = *place;
      receiving.stale = place->length == 0;
      if (!receiving.stale && !is_barrier(packet.frame->header.tensor)) staging_checker_->landing(*place);
    }
  }
  if (packet.end > packet.begin && !receiving.stale) land(packet, receiving);
  if (!packet.last) return;
  receiving.open = false;
  flow.in.deliver();
  frame_complete(packet, receiving);
}

void Rail::land(const Packet& packet, Receiving& receiving) {
  const std::span<std::byte> out = around_.memory.resolve(receiving.place);
  if (out.size() != packet.frame->header.payload_bytes) {
    around_.findings.fail("memory", "host {}: a frame of {} bytes lands on {} bytes", self_.value,
                          packet.frame->header.payload_bytes, out.size());
    return;
  }
  std::copy(packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.begin),
            packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.end),
            out.begin() + static_cast<std::ptrdiff_t>(packet.begin));
}

void Rail::frame_complete(const Packet& packet, const Receiving& receiving) {
  const Frame& frame = *packet.frame;
  around_.trace.line(self_, "got {} from {}: tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}{}",
                     static_cast<int>(frame.header.type), packet.from.value, frame.header.tensor.value,
                     frame.header.sequence.value, frame.header.slice, frame.header.offset, frame.header.payload_bytes,
                     frame.header.grant, receiving.stale ? " STALE" : "");
  if (frame.header.payload_bytes > 0 && !receiving.stale) {
    around_.delivery.landed(frame, staging_checker_->inside(receiving.place));
    remember_for_replay(frame);
    ++*around_.progress;
  }
  pending_.push_back({.kind = Event::Kind::kFrameArrived, .frame = {packet.from, frame.header}});
}

void Rail::step_all() {
  std::vector<Event> events;
  events.swap(pending_);
  step(events);
}

void Rail::step(std::span<const Event> events) {
  while (!events.empty() && around_.host.phase != HostState::Phase::kClosed) {
    const Time now = around_.events.now();
    const std::size_t taken = engine_->step(now, events, actions_);
    if (taken > events.size() || (taken == 0 && actions_.empty())) {
      around_.findings.fail("progress", "host {}: step() takes {} of {} events with room for actions", self_.value,
                            taken, events.size());
      return;
    }
    for (const Event& event : events.first(taken)) order_.stepped(now, event);
    events = events.subspan(taken);
    check_bounds();
    while (!actions_.empty()) {
      const Action action = actions_.front();
      actions_.pop();
      carry_out(action);
    }
  }
}

void Rail::carry_out(const Action& action) {
  if (action.kind == Action::Kind::kProtocolError) {
    around_.findings.fail("protocol", "host {} says that host {} broke the protocol: {} (tensor {}, slice {})",
                          self_.value, action.error.peer.value, action.error.reason, action.error.header.tensor.value,
                          action.error.header.slice);
    return;
  }
  if (action.kind == Action::Kind::kAgreed) return around_.agreed(action.agreed);
  const engine::Complete& complete = action.complete;
  if (!complete.ok && around_.host.running()) {
    around_.findings.fail("abort", "host {}: tensor {} failed without an abort", self_.value, complete.tensor.value);
  }
  if (!complete.ok && around_.host.phase == HostState::Phase::kDraining) {
    around_.findings.fail("abort", "host {}: tensor {} failed before its flows were closed", self_.value,
                          complete.tensor.value);
  }
  if (complete.ok && sends_unfinished_[complete.tensor.value] > 0) {
    around_.findings.fail("memory", "host {}: tensor {} completes while {} of its payloads may still be read",
                          self_.value, complete.tensor.value, sends_unfinished_[complete.tensor.value]);
  }
  ++*around_.progress;
  around_.complete(complete);
}

// ---- arithmetic ----

void Rail::start_work() {
  engine::Work work;
  while (working_.size() < around_.scenario.lane.blocks_at_once && engine_->pick_work(around_.events.now(), &work)) {
    working_.push_back({work, !around_.scenario.lane.compute_late});
    if (!around_.scenario.lane.compute_late) compute(work);
  }
  if (working_.empty()) return;
  const auto blocks = static_cast<std::int64_t>(working_.size());
  const Duration time = random_.between(Duration(0), around_.scenario.lane.block_time * blocks);
  around_.events.after(time, [this] { finish_work(); });
}

void Rail::finish_work() {
  if (around_.host.dead || around_.host.phase == HostState::Phase::kClosed) return;
  if (around_.host.frozen) {
    around_.events.after(around_.scenario.heartbeat, [this] { finish_work(); });
    return;
  }
  std::vector<Event> done;
  for (const Block& block : working_) {
    if (!block.computed) compute(block.work);
    done.push_back({.kind = Event::Kind::kWorkDone, .token = block.work.token});
  }
  working_.clear();
  step(done);
  poll();
}

void Rail::compute(const engine::Work& work) {
  std::vector<ports::ReduceSource> sources;
  const std::span<std::byte> out = around_.memory.resolve(work.out);
  bool fits = work.source_count > 0 && out.size() == work.elements * dtype_size(work.out_dtype) &&
              out.size() <= kMaxOperation.value;
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    const auto& source = work.sources[i];
    const std::span<std::byte> bytes = around_.memory.resolve(source.data);
    fits = fits && bytes.size() == work.elements * dtype_size(source.dtype);
    sources.push_back({bytes.data(), source.dtype});
  }
  if (!fits) {
    around_.findings.fail("memory", "host {}: a block of {} elements and {} sources does not fit its memory",
                          self_.value, work.elements, work.source_count);
    return;
  }
  around_.trace.line(self_, "sum {} elements of {} sources", work.elements, work.source_count);
  reducer_.reduce(out.data(), work.out_dtype, sources, work.elements, work.op, work.divisor);
  for (std::uint32_t i = 0; i < work.source_count; ++i) staging_checker_->consumed(work.sources[i].data);
  ++*around_.progress;
}

// ---- sending ----

void Rail::send_all() {
  for (std::size_t level = 0; level < 1 + std::size_t{config_.classes} && !around_.findings.any(); ++level) {
    send_level(level);
  }
}

Bytes Rail::credit(std::size_t level) const {
  const std::uint64_t window = around_.scenario.windows[level].value;
  return Bytes(window - std::min(window, in_flight_[level]));
}

bool Rail::flow_has_room(engine::Flow flow) const {
  const FlowState& state = flows_[flow_index(flow.peer, level_of(flow.cls))];
  return !state.lost && state.out.pushed() - state.out.delivered() < around_.scenario.lane.flow_room;
}

// Peers in turn, until the window is full, no flow has room, or nothing is left.
void Rail::send_level(std::size_t level) {
  const ClassId cls = level == 0 ? kControlClass : ClassId(static_cast<std::uint8_t>(level - 1));
  std::vector<engine::Send> sends(level == 0 ? 8 : around_.scenario.lane.sends_at_once);
  std::size_t blocked = 0;
  HostIndex peer;
  while (blocked < around_.scenario.hosts() &&
         engine_->next_flow(around_.events.now(), cls, last_peer_[level], &peer)) {
    last_peer_[level] = peer;
    const engine::Flow flow{peer, cls};
    if (peer == self_ || peer.value >= around_.scenario.hosts() || !engine_->has_sends(around_.events.now(), flow)) {
      return around_.findings.fail("order", "host {}: next_flow() names host {}, which has nothing to send",
                                   self_.value, peer.value);
    }
    if (!flow_has_room(flow)) {
      ++blocked;
      continue;
    }
    const Bytes room = credit(level);
    const std::size_t picked = engine_->pick(around_.events.now(), flow, room, sends);
    check_pick(flow, room, picked, sends);
    if (picked == 0 || around_.findings.any()) return;
    for (std::size_t i = 0; i < picked; ++i) send(flow, sends[i]);
    blocked = 0;
  }
}

void Rail::check_pick(engine::Flow flow, Bytes room, std::size_t picked, std::span<const engine::Send> sends) {
  if (picked > sends.size()) {
    return around_.findings.fail("bounds", "host {}: pick() returns {} of at most {} operations", self_.value, picked,
                                 sends.size());
  }
  order_.picked(around_.events.now(), flow, sends.first(picked));
  std::uint64_t bytes = 0;
  for (const engine::Send& send : sends.first(picked)) bytes += send.header.payload_bytes;
  if (bytes > room.value) {
    around_.findings.fail("bounds", "host {}: pick() returns {} bytes for a window that has {} left", self_.value,
                          bytes, room.value);
  }
  if (picked == 0 && room.value >= kMaxOperation.value) {
    around_.findings.fail("order",
                          "host {}: pick() returns nothing for host {}, class {}, though there is work and credit",
                          self_.value, flow.peer.value, flow.cls.value);
  }
  if (flow.cls == kControlClass || picked == 0) return;
  const auto can_go = [this](engine::Flow urgent) {
    return flow_has_room(urgent) && credit(level_of(urgent.cls)).value >= kMaxOperation.value;
  };
  if (const auto urgent = order_.waiting_above(around_.events.now(), flow.cls, can_go)) {
    around_.findings.fail("order", "host {}: class {} starts while class {} has a grant of host {}, room and credit",
                          self_.value, flow.cls.value, urgent->cls.value, urgent->peer.value);
  }
}

void Rail::send(engine::Flow flow, const engine::Send& send) {
  const std::span<std::byte> payload = around_.memory.resolve(send.payload);
  if (payload.size() != send.header.payload_bytes || payload.size() > kMaxOperation.value) {
    around_.findings.fail("memory", "host {}: a payload of {} bytes is said to have {}", self_.value, payload.size(),
                          send.header.payload_bytes);
    return;
  }
  auto frame = std::make_shared<Frame>();
  frame->from = self_;
  frame->to = flow.peer;
  frame->cls = flow.cls;
  frame->header = send.header;
  frame->payload.assign(payload.begin(), payload.end());
  frame->source = send.payload;
  frame->token = send.token;
  around_.trace.line(self_, "send {} to {}: tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}",
                     static_cast<int>(send.header.type), flow.peer.value, send.header.tensor.value,
                     send.header.sequence.value, send.header.slice, send.header.offset, send.header.payload_bytes,
                     send.header.grant);
  if (send.token != 0) ++sends_unfinished_[send.header.tensor.value];
  FlowState& state = flows_[flow_index(flow.peer, level_of(flow.cls))];
  state.kept[state.out.slot(state.out.push())] = frame;
  give(state, frame);
  if (!around_.scenario.lane.done_when_acknowledged) send_done(*frame);
}

void Rail::send_done(const Frame& frame) {
  if (frame.token == 0) return;
  --sends_unfinished_[frame.header.tensor.value];
  pending_.push_back({.kind = Event::Kind::kSendDone, .token = frame.token});
  wake();
}

// A transport may read the payload again until the receiver has it, so until then nobody may change it. Later, and
// before SendDone, the result of the same operation may land on it: a retransmission that carries it is thrown away.
void Rail::on_arrived(const FramePtr& frame) {
  if (around_.host.dead || !around_.host.running() || !around_.scenario.lane.done_when_acknowledged) return;
  if (is_barrier(frame->header.tensor) || std::ranges::equal(around_.memory.resolve(frame->source), frame->payload))
    return;
  around_.findings.fail("memory",
                        "host {}: the payload of tensor {}, sequence {}, slice {} changed while it was being sent",
                        self_.value, frame->header.tensor.value, frame->header.sequence.value, frame->header.slice);
}

// ---- checks ----

void Rail::check_bounds() {
  const engine::EngineCounters& c = engine_->counters();
  if (c.staging_bytes > config_.staging.value || c.staging_peak_bytes > config_.staging.value) {
    around_.findings.fail("bounds", "host {}: {} bytes of staging in use, {} at most, {} allowed", self_.value,
                          c.staging_bytes, c.staging_peak_bytes, config_.staging.value);
  }
  if (c.queued_slices > config_.max_queued_slices) {
    around_.findings.fail("bounds", "host {}: {} slices queued, {} allowed", self_.value, c.queued_slices,
                          config_.max_queued_slices);
  }
  if (staging_checker_->held() > staging_.length) {
    around_.findings.fail("bounds", "host {}: {} bytes of contributions wait in a staging of {}", self_.value,
                          staging_checker_->held(), staging_.length);
  }
}

void Rail::check_quiet() const {
  const engine::EngineCounters& c = engine_->counters();
  if (c.stale_grants != replayed_) {
    around_.findings.fail("stale", "host {}: {} stale frames were counted, {} were sent", self_.value, c.stale_grants,
                          replayed_);
  }
  if (c.staging_bytes != 0 || c.queued_slices != 0 || c.operations_pending != 0 || engine_->oldest()) {
    around_.findings.fail("bounds",
                          "host {}: all is over, but {} bytes of staging, {} slices and {} operations are left",
                          self_.value, c.staging_bytes, c.queued_slices, c.operations_pending);
  }
}

void Rail::check_log() {
  if (!around_.scenario.record) return;
  engine_->end_log();
  std::istringstream log(log_);
  const Result<engine_log::Replay> replay = engine_log::replay(log, "log");
  if (!replay.ok()) return around_.findings.fail("digest", "host {}: {}", self_.value, replay.status().to_string());
  if (replay->parting) {
    return around_.findings.fail("digest", "host {}: the replay of its log parts from it at record {}: {}", self_.value,
                                 replay->parting->record, replay->parting->why);
  }
  if (replay->digest != engine_->digest() || replay->end != engine_log::EndReason::kClosed)
    around_.findings.fail("digest", "host {}: the log of its engine ends before the engine does", self_.value);
}

std::string Rail::describe() const {
  std::string text = fmt::format("\n    rail {}:", rail_.value);
  if (const auto oldest = engine_->oldest()) {
    text += fmt::format(" oldest: tensor {} sequence {} since {} us, missing hosts:", oldest->tensor.value,
                        oldest->sequence.value, oldest->since.value / 1000);
    for (HostIndex host : engine_->missing(oldest->tensor)) text += fmt::format(" {}", host.value);
    text += ';';
  }
  const engine::EngineCounters& c = engine_->counters();
  return text +
         fmt::format(" staging {} bytes, queued {}, arrived {}", c.staging_bytes, c.queued_slices, inbox_.size());
}

// ---- the end ----

void Rail::abort() {
  // What the transport had told the lane already may or may not reach the engine before the abort.
  if (random_.chance(0.5)) step_all();
  std::vector<Event> dropped;
  dropped.swap(pending_);
  const Event event{.kind = Event::Kind::kAbort};
  step(std::span(&event, 1));
  for (const Event& left : dropped) {
    const engine::TensorReady& ready = left.tensor_ready;
    if (left.kind == Event::Kind::kTensorReady) around_.complete({ready.tensor, ready.sequence, false});
  }
  around_.network.close(self_);
}

void Rail::drain() {
  inbox_.clear();
  working_.clear();
  const Event event{.kind = Event::Kind::kDrained};
  for (bool taken = false; !taken;) {
    taken = engine_->step(around_.events.now(), std::span(&event, 1), actions_) == 1;
    if (!taken && actions_.empty()) {
      around_.findings.fail("abort", "host {}: step() does not take Drained", self_.value);
      return;
    }
    while (!actions_.empty()) {
      const engine::Complete complete = actions_.front().complete;
      actions_.pop();
      around_.complete(complete);
    }
  }
  if (engine_->counters().operations_pending > 0)
    around_.findings.fail("abort", "host {}: after the abort operations are still pending", self_.value);
}

// ---- stale frames ----

// Frames that a grant allowed, kept until their operation is over: later ones with the same grant must not land any
// more (law 3).
void Rail::remember_for_replay(const Frame& frame) {
  const bool eager = (frame.header.flags & protocol::kFlagEager) != 0;
  if (eager || !random_.chance(around_.scenario.replay)) return;
  replays_.push_back(frame.header);
  replay_from_.push_back(frame.from);
}

void Rail::replay() {
  for (std::size_t i = replays_.size(); i-- > 0;) {
    const protocol::FrameHeader header = replays_[i];
    const HostIndex from = replay_from_[i];
    if (around_.holds(header.tensor, header.sequence)) continue;
    replays_.erase(replays_.begin() + static_cast<std::ptrdiff_t>(i));
    replay_from_.erase(replay_from_.begin() + static_cast<std::ptrdiff_t>(i));
    const Result<Descriptor> place = engine_->landing(from, header);
    if (!place.ok() || place->length != 0) {
      around_.findings.fail("stale", "host {}: a frame for tensor {}, sequence {} was let in after that had completed",
                            self_.value, header.tensor.value, header.sequence.value);
      return;
    }
    ++replayed_;
    around_.trace.line(self_, "stale frame for tensor {} sequence {}", header.tensor.value, header.sequence.value);
    pending_.push_back({.kind = Event::Kind::kFrameArrived, .frame = {from, header}});
    wake();
  }
}

}  // namespace tensorlane::simulator
