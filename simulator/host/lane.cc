#include "simulator/host/lane.h"

#include <algorithm>

namespace tensorlane::simulator {

using engine::Action;
using engine::Event;

Lane::Lane(HostIndex self, Around around, Random random)
    : self_(self),
      around_(around),
      random_(random),
      config_(around.scenario.engine),
      limits_(self, around.scenario, around.findings),
      order_(self, around.scenario, limits_, around.findings),
      actions_(around.scenario.lane.action_ring),
      flows_(around.scenario.hosts() * kLevels, FlowState(around.scenario.lane.flow_room)),
      sends_unfinished_(around.scenario.plan.tensors.size()),
      heard_(around.scenario.hosts()) {
  config_.self = self;
  staging_ = memory_.allocate(engine::Engine::staging_bytes(config_).value);
  engine_ = std::make_unique<engine::Engine>(config_, staging_);
  staging_checker_ = std::make_unique<StagingChecker>(self, staging_, around_.findings);
  planned_ = around_.scenario.tensors_at_start;
  const Status status = engine_->apply_plan(around_.scenario.plan_of(planned_));
  if (!status.ok())
    around_.findings.fail("protocol", "host {}: the plan was refused: {}", self.value, status.to_string());
  client_ = std::make_unique<Client>(
      self,
      Client::Around{around_.scenario, around_.events, memory_, around_.values, around_.results, around_.findings,
                     around_.trace, [this](const Event& event) { submit(event); }},
      random_.fork(1));
  around_.network.attach(self, this);
}

void Lane::start() {
  client_->start();
  around_.events.after(random_.between(Duration(0), around_.scenario.heartbeat), [this] { beat(); });
}

// ---- a plan that grows ----

void Lane::grow_plan(std::size_t tensors, std::function<void()> then) {
  growths_.emplace_back(tensors, std::move(then));
  wake();
}

void Lane::apply_growths() {
  while (!growths_.empty()) {
    const auto [tensors, then] = std::move(growths_.front());
    growths_.pop_front();
    // Two growths with overlapping spreads: what the later one brought is known.
    if (tensors <= planned_) {
      then();
      continue;
    }
    planned_ = tensors;
    const Status status = engine_->apply_plan(around_.scenario.plan_of(tensors));
    if (!status.ok())
      around_.findings.fail("protocol", "host {}: the plan was refused: {}", self_.value, status.to_string());
    around_.trace.line(self_, "plan of {} tensors", tensors);
    then();
  }
}

void Lane::allow(std::size_t tensors) {
  if (!dead_) client_->allow(tensors);
}

// ---- what arrives ----

void Lane::on_packet(const Packet& packet) {
  if (dead_ || state_ != State::kRunning) return;
  inbox_.push_back(packet);
  wake();
}

void Lane::on_acknowledged(const FramePtr& frame) {
  if (dead_ || state_ != State::kRunning) return;
  in_flight_[level_of(frame->cls)] -= frame->payload.size();
  flows_[flow_index(frame->to, level_of(frame->cls))].in_flight -= frame->payload.size();
  wake();
}

void Lane::submit(const Event& event) {
  if (dead_) return;
  if (state_ == State::kRunning) {
    pending_.push_back(event);
    return wake();
  }
  // The job has failed: so does every later operation (ports/job.h), without the engine.
  const engine::TensorReady& ready = event.tensor_ready;
  if (event.kind == Event::Kind::kTensorReady) client_->completed(ready.tensor, ready.sequence, false);
}

void Lane::wake() {
  if (scheduled_) return;
  scheduled_ = true;
  around_.events.after(random_.between(Duration(0), around_.scenario.lane.poll_delay), [this] {
    scheduled_ = false;
    poll();
  });
}

// ---- the loop ----

void Lane::poll() {
  if (dead_ || frozen_ || state_ != State::kRunning || around_.findings.any()) return;
  apply_growths();
  receive();
  tell_delivered();
  // While blocks of arithmetic are being done payload may land, but nothing is fed (engine.h, pick_work).
  if (!working_.empty()) return;
  step_all();
  if (state_ != State::kRunning) return;
  start_work();
  send_all();
  replay();
}

void Lane::receive() {
  while (!inbox_.empty() && state_ == State::kRunning) {
    const Packet packet = std::move(inbox_.front());
    inbox_.pop_front();
    receive_packet(packet);
    if (working_.empty() && random_.chance(around_.scenario.lane.step_early)) step_all();
  }
}

void Lane::receive_packet(const Packet& packet) {
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

void Lane::land(const Packet& packet, Receiving& receiving) {
  const std::span<std::byte> out = memory_.resolve(receiving.place);
  if (out.size() != packet.frame->header.payload_bytes) {
    around_.findings.fail("memory", "host {}: a frame of {} bytes lands on {} bytes", self_.value,
                          packet.frame->header.payload_bytes, out.size());
    return;
  }
  std::copy(packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.begin),
            packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.end),
            out.begin() + static_cast<std::ptrdiff_t>(packet.begin));
}

void Lane::frame_complete(const Packet& packet, const Receiving& receiving) {
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

void Lane::step_all() {
  std::vector<Event> events;
  events.swap(pending_);
  step(events);
}

void Lane::step(std::span<const Event> events) {
  while (!events.empty() && state_ != State::kClosed) {
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

void Lane::carry_out(const Action& action) {
  if (action.kind == Action::Kind::kProtocolError) {
    around_.findings.fail("protocol", "host {} says that host {} broke the protocol: {} (tensor {}, slice {})",
                          self_.value, action.error.peer.value, action.error.reason, action.error.header.tensor.value,
                          action.error.header.slice);
    return;
  }
  const engine::Complete& complete = action.complete;
  if (!complete.ok && state_ == State::kRunning) {
    around_.findings.fail("abort", "host {}: tensor {} failed without an abort", self_.value, complete.tensor.value);
  }
  if (!complete.ok && state_ == State::kDraining) {
    around_.findings.fail("abort", "host {}: tensor {} failed before its flows were closed", self_.value,
                          complete.tensor.value);
  }
  if (complete.ok && sends_unfinished_[complete.tensor.value] > 0) {
    around_.findings.fail("memory", "host {}: tensor {} completes while {} of its payloads may still be read",
                          self_.value, complete.tensor.value, sends_unfinished_[complete.tensor.value]);
  }
  ++*around_.progress;
  if (complete.ok) around_.delivery.completed(complete.tensor, complete.sequence);
  client_->completed(complete.tensor, complete.sequence, complete.ok);
}

// ---- arithmetic ----

void Lane::start_work() {
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

void Lane::finish_work() {
  if (dead_ || state_ == State::kClosed) return;
  if (frozen_) {
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

void Lane::compute(const engine::Work& work) {
  std::vector<ports::ReduceSource> sources;
  const std::span<std::byte> out = memory_.resolve(work.out);
  bool fits = work.source_count > 0 && out.size() == work.elements * dtype_size(work.out_dtype) &&
              out.size() <= kMaxOperation.value;
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    const auto& source = work.sources[i];
    const std::span<std::byte> bytes = memory_.resolve(source.data);
    fits = fits && bytes.size() == work.elements * dtype_size(source.dtype);
    sources.push_back({bytes.data(), source.dtype});
  }
  if (!fits) {
    around_.findings.fail("memory", "host {}: a block of {} elements and {} sources does not fit its memory",
                          self_.value, work.elements, work.source_count);
    return;
  }
  around_.trace.line(self_, "sum {} elements of {} sources", work.elements, work.source_count);
  reducer_.reduce(out.data(), work.out_dtype, sources, work.elements, work.divisor);
  for (std::uint32_t i = 0; i < work.source_count; ++i) staging_checker_->consumed(work.sources[i].data);
  ++*around_.progress;
}

// ---- sending ----

void Lane::send_all() {
  for (std::size_t level = 0; level < 1 + std::size_t{config_.classes} && !around_.findings.any(); ++level) {
    send_level(level);
  }
}

Bytes Lane::credit(std::size_t level) const {
  const std::uint64_t window = around_.scenario.windows[level].value;
  return Bytes(window - std::min(window, in_flight_[level]));
}

bool Lane::flow_has_room(engine::Flow flow) const {
  const FlowState& state = flows_[flow_index(flow.peer, level_of(flow.cls))];
  return !state.lost && state.out.pushed() - state.out.delivered() < around_.scenario.lane.flow_room;
}

// Peers in turn, until the window is full, no flow has room, or nothing is left.
void Lane::send_level(std::size_t level) {
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

void Lane::check_pick(engine::Flow flow, Bytes room, std::size_t picked, std::span<const engine::Send> sends) {
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

void Lane::send(engine::Flow flow, const engine::Send& send) {
  const std::span<std::byte> payload = memory_.resolve(send.payload);
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

void Lane::send_done(const Frame& frame) {
  if (frame.token == 0) return;
  --sends_unfinished_[frame.header.tensor.value];
  pending_.push_back({.kind = Event::Kind::kSendDone, .token = frame.token});
  wake();
}

// A transport may read the payload again until the receiver has it, so until then nobody may change it. Later, and
// before SendDone, the result of the same operation may land on it: a retransmission that carries it is thrown away.
void Lane::on_arrived(const FramePtr& frame) {
  if (dead_ || state_ != State::kRunning || !around_.scenario.lane.done_when_acknowledged) return;
  if (is_barrier(frame->header.tensor) || std::ranges::equal(memory_.resolve(frame->source), frame->payload)) return;
  around_.findings.fail("memory",
                        "host {}: the payload of tensor {}, sequence {}, slice {} changed while it was being sent",
                        self_.value, frame->header.tensor.value, frame->header.sequence.value, frame->header.slice);
}

// ---- checks ----

void Lane::check_bounds() {
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

void Lane::check_quiet() const {
  client_->check_buffers();
  if (const int region = memory_.broken_canary(); region >= 0) {
    around_.findings.fail("memory", "host {}: the canary around region {} is overwritten", self_.value, region);
  }
  if (aborted() || !alive()) return;
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

std::string Lane::describe() const {
  std::string text =
      fmt::format("host {}: {}{}{}, pending:{}", self_.value, aborted() ? "aborted (" + cause_ + ")" : "running",
                  dead_ ? ", dead" : "", frozen_ ? ", frozen" : "", client_->describe_pending());
  const auto oldest = engine_->oldest();
  if (!oldest) return text;
  text += fmt::format("; oldest: tensor {} sequence {} since {} us, missing hosts:", oldest->tensor.value,
                      oldest->sequence.value, oldest->since.value / 1000);
  for (HostIndex host : engine_->missing(oldest->tensor)) text += fmt::format(" {}", host.value);
  const engine::EngineCounters& c = engine_->counters();
  return text + fmt::format("; staging {} bytes, queued {}, in flight to others {}", c.staging_bytes, c.queued_slices,
                            inbox_.size());
}

bool Lane::resolved() const {
  if (!alive()) return true;
  if (state_ == State::kRunning) return client_->finished();
  return state_ == State::kClosed && client_->pending() == 0;
}

}  // namespace tensorlane::simulator
