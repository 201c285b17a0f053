// Liveness, abort and faults of a host: what control does beside a lane (laws 7, 10 and 18).
#include "simulator/host/lane.h"

namespace tensorlane::simulator {

using engine::Event;

void Lane::on_heartbeat(HostIndex from, const Heartbeat& beat) {
  if (dead_) return;
  heard_[from.value] = around_.events.now();
  if (beat.aborted && !frozen_) abort(fmt::format("host {} aborted the job", from.value));
}

// Says that we live, and looks who else does. An aborted host goes on saying so, so that everybody who can be reached
// knows.
void Lane::beat() {
  if (dead_ || around_.findings.any()) return;
  const Time now = around_.events.now();
  around_.events.after(around_.scenario.heartbeat, [this] { beat(); });
  if (frozen_) return;
  if (!client_frozen_) client_heard_ = now;
  for (std::uint16_t h = 0; h < around_.scenario.hosts(); ++h) {
    if (h == self_.value) continue;
    around_.network.send(self_, HostIndex(h), Heartbeat{aborted()});
    if (state_ == State::kRunning && now - heard_[h] > around_.scenario.detection) {
      abort(fmt::format("host {} was silent for too long", h));
    }
  }
  for (const FlowState& flow : flows_) {
    if (state_ == State::kRunning && flow.lost && now - *flow.lost > around_.scenario.detection)
      abort("a connection was lost and did not come back");
  }
  if (state_ == State::kRunning && now - client_heard_ > around_.scenario.detection) abort("the client hangs");
}

void Lane::abort(std::string cause) {
  if (dead_ || state_ != State::kRunning) return;
  around_.trace.line(self_, "abort: {}", cause);
  cause_ = std::move(cause);
  state_ = State::kDraining;
  const Event event{.kind = Event::Kind::kAbort};
  // What the transport had told the lane already may or may not reach the engine before the abort.
  if (random_.chance(0.5)) step_all();
  std::vector<Event> dropped;
  dropped.swap(pending_);
  step(std::span(&event, 1));
  for (const Event& left : dropped) submit(left);
  around_.network.close(self_);
  for (std::uint16_t h = 0; h < around_.scenario.hosts(); ++h) {
    if (h != self_.value) around_.network.send(self_, HostIndex(h), Heartbeat{true});
  }
  around_.events.after(random_.between(Duration(0), around_.scenario.heartbeat), [this] { drained(); });
}

void Lane::drained() {
  if (dead_) return;
  if (frozen_) {
    around_.events.after(around_.scenario.heartbeat, [this] { drained(); });
    return;
  }
  inbox_.clear();
  working_.clear();
  const Event event{.kind = Event::Kind::kDrained};
  for (bool taken = false; !taken;) {
    taken = engine_->step(around_.events.now(), std::span(&event, 1), actions_) == 1;
    if (!taken && actions_.empty()) {
      around_.findings.fail("abort", "host {}: step() does not take Drained", self_.value);
      return;
    }
    if (taken) state_ = State::kClosed;
    while (!actions_.empty()) {
      const engine::Complete complete = actions_.front().complete;
      actions_.pop();
      client_->completed(complete.tensor, complete.sequence, complete.ok);
    }
  }
  if (client_->pending() > 0 || engine_->counters().operations_pending > 0) {
    around_.findings.fail("abort", "host {}: after the abort operations are still pending:{}", self_.value,
                          client_->describe_pending());
  }
}

void Lane::set_frozen(bool frozen) {
  frozen_ = frozen;
  if (!frozen_ && !dead_) wake();
}

void Lane::kill() {
  dead_ = true;
  around_.network.remove(self_);
}

void Lane::freeze_client(bool frozen) {
  client_frozen_ = frozen;
  client_->set_frozen(frozen);
}

void Lane::kill_client() {
  const bool in_peace = client_->finished();
  client_->kill();
  if (!in_peace) abort("the client died");
}

// ---- stale frames ----

// Frames that a grant allowed, kept until their operation is over: later ones with the same grant must not land any
// more (law 3).
void Lane::remember_for_replay(const Frame& frame) {
  const bool eager = (frame.header.flags & protocol::kFlagEager) != 0;
  if (eager || !random_.chance(around_.scenario.replay)) return;
  replays_.push_back(frame.header);
  replay_from_.push_back(frame.from);
}

void Lane::replay() {
  for (std::size_t i = replays_.size(); i-- > 0;) {
    const protocol::FrameHeader header = replays_[i];
    const HostIndex from = replay_from_[i];
    if (client_->holds(header.tensor, header.sequence)) continue;
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
