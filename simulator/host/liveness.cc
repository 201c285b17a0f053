// Liveness, abort and faults of a host: what control does beside a lane (laws 7, 10 and 18).
#include "simulator/host/lane.h"

namespace tensorlane::simulator {

void Rail::on_heartbeat(HostIndex from, const Heartbeat& beat) {
  around_.heartbeat(from, rail_, beat);
}

void Lane::heard(HostIndex from, RailIndex rail, const Heartbeat& beat) {
  if (state_.dead) return;
  heard_[rail.value][from.value] = around_.events.now();
  if (beat.aborted && !state_.frozen) abort(fmt::format("host {} aborted the job", from.value));
}

// Says that we live, and looks who else does. An aborted host goes on saying so, so that everybody who can be reached
// knows.
void Lane::beat() {
  if (state_.dead || around_.findings.any()) return;
  const Time now = around_.events.now();
  around_.events.after(around_.scenario.heartbeat, [this] { beat(); });
  if (state_.frozen) return;
  if (!client_frozen_) client_heard_ = now;
  for (std::uint8_t r = 0; r < rails_.size(); ++r) beat(RailIndex(r));
  if (state_.running() && now - client_heard_ > around_.scenario.detection) abort("the client hangs");
}

// On every rail: one that is silent is a flow that is lost, however well the others are.
void Lane::beat(RailIndex rail) {
  const std::vector<Time>& heard = heard_[rail.value];
  for (std::uint16_t h = 0; h < around_.scenario.hosts(); ++h) {
    if (h == self_.value) continue;
    around_.networks[rail.value]->send(self_, HostIndex(h), Heartbeat{aborted()});
    if (state_.running() && around_.events.now() - heard[h] > around_.scenario.detection) {
      abort(fmt::format("host {} was silent for too long on rail {}", h, rail.value));
    }
  }
  if (state_.running() && rails_[rail.value]->has_lost_flow())
    abort(fmt::format("a connection on rail {} was lost and did not come back", rail.value));
}

void Lane::abort(std::string cause) {
  if (state_.dead || !state_.running()) return;
  around_.trace.line(self_, "abort: {}", cause);
  cause_ = std::move(cause);
  state_.phase = HostState::Phase::kDraining;
  for (auto& rail : rails_) rail->abort();
  for (auto& network : around_.networks) {
    for (std::uint16_t h = 0; h < around_.scenario.hosts(); ++h) {
      if (h != self_.value) network->send(self_, HostIndex(h), Heartbeat{true});
    }
  }
  around_.events.after(random_.between(Duration(0), around_.scenario.heartbeat), [this] { drained(); });
}

void Lane::drained() {
  if (state_.dead) return;
  if (state_.frozen) {
    around_.events.after(around_.scenario.heartbeat, [this] { drained(); });
    return;
  }
  for (auto& rail : rails_) rail->drain();
  fail_held();
  state_.phase = HostState::Phase::kClosed;
  if (client_->pending() > 0) {
    around_.findings.fail("abort", "host {}: after the abort operations are still pending:{}", self_.value,
                          client_->describe_pending());
  }
}

void Lane::set_frozen(bool frozen) {
  state_.frozen = frozen;
  if (frozen || state_.dead) return;
  for (auto& rail : rails_) rail->wake();
}

void Lane::kill() {
  state_.dead = true;
  for (auto& network : around_.networks) network->remove(self_);
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

}  // namespace tensorlane::simulator
