// Liveness, abort and faults of a host: what control does beside a lane (laws 7, 10 and 18).
#include "simulator/host/daemon.h"

namespace tensorlane::simulator {

void SimDaemon::heard(HostIndex from, RailIndex rail, const Heartbeat& beat) {
  if (dead_) return;
  heard_[rail.value][from.value] = context_.events.now();
  if (beat.aborted && !frozen_) abort(fmt::format("host {} aborted the job", from.value));
}

// Says that we live, and looks who else does. An aborted host goes on saying so, so that everybody who can be reached
// knows.
void SimDaemon::beat() {
  if (dead_ || context_.findings.any()) return;
  const Time now = context_.events.now();
  context_.events.after(context_.scenario.heartbeat, [this] { beat(); });
  if (frozen_) return;
  if (!client_frozen_) client_heard_ = now;
  for (std::uint8_t r = 0; r < context_.scenario.rails(); ++r) beat(RailIndex(r));
  if (phase_ == Phase::kRunning && now - client_heard_ > context_.scenario.detection) abort("a client hangs");
}

// On every rail: one that is silent is a flow that is lost, however well the others are.
void SimDaemon::beat(RailIndex rail) {
  const std::vector<Time>& heard = heard_[rail.value];
  for (std::uint16_t h = 0; h < context_.scenario.hosts(); ++h) {
    if (h == self_.value) continue;
    context_.networks[rail.value]->send(self_, HostIndex(h), Heartbeat{aborted()});
    if (phase_ == Phase::kRunning && context_.events.now() - heard[h] > context_.scenario.detection)
      abort(fmt::format("host {} was silent for too long on rail {}", h, rail.value));
  }
}

void SimDaemon::abort(std::string cause) {
  if (dead_ || phase_ != Phase::kRunning) return;
  context_.trace.line(self_, "abort: {}", cause);
  cause_ = std::move(cause);
  phase_ = Phase::kDraining;
  command([this] {
    if (host::Job* j = job()) {
      j->abort({Code::kAborted, cause_, "", ""}, host_->now());
    } else {
      on_job_closed({});
    }
    return true;
  });
  for (auto& network : context_.networks) {
    for (std::uint16_t h = 0; h < context_.scenario.hosts(); ++h) {
      if (h != self_.value) network->send(self_, HostIndex(h), Heartbeat{true});
    }
  }
}

void SimDaemon::set_frozen(bool frozen) {
  frozen_ = frozen;
  if (!frozen && !dead_) wake();
}

void SimDaemon::kill() {
  dead_ = true;
  for (auto& network : context_.networks) network->remove(self_);
}

void SimDaemon::freeze_client(bool frozen) {
  client_frozen_ = frozen;
  for (auto& client : clients_) client->set_frozen(frozen);
}

void SimDaemon::kill_client() {
  const bool in_peace = std::ranges::all_of(clients_, [](const auto& client) { return client->finished(); });
  for (auto& client : clients_) client->kill();
  for (auto& session : sessions_) session->die();
  if (!in_peace) abort("a client died");
}

}  // namespace tensorlane::simulator
