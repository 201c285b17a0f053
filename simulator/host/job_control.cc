// Liveness and abort of a job on a host, and what happens to its clients: what control does beside a lane (laws 7, 10
// and 18).
#include <algorithm>

#include "simulator/host/daemon.h"

namespace tensorlane::simulator {

// On every rail: one that is silent is a flow that is lost, however well the others are.
void SimJob::look(RailIndex rail, const std::vector<Time>& heard) {
  if (phase_ != Phase::kRunning) return;
  for (std::uint16_t h = 0; h < scenario_.hosts(); ++h) {
    if (h == machine_.self().value || machine_.events().now() - heard[h] <= scenario_.detection) continue;
    return abort(fmt::format("host {} was silent for too long on rail {}", h, rail.value));
  }
}

void SimJob::look_at_clients() {
  const Time now = machine_.events().now();
  if (!client_frozen_) client_heard_ = now;
  if (phase_ == Phase::kRunning && now - client_heard_ > scenario_.detection) abort("a client hangs");
}

void SimJob::abort(std::string cause) {
  if (machine_.dead() || phase_ != Phase::kRunning) return;
  machine_.trace().line(machine_.self(), "job {}: abort: {}", run_.number, cause);
  cause_ = std::move(cause);
  phase_ = Phase::kDraining;
  aborted_ = true;
  command([this] {
    if (host::Job* j = job()) {
      j->abort({Code::kAborted, cause_, "", ""}, machine_.home(run_.number).host().now());
    } else {
      closed();
    }
    return true;
  });
  machine_.tell_aborted();
}

void SimJob::leave() {
  if (machine_.dead() || phase_ != Phase::kRunning) return;
  machine_.trace().line(machine_.self(), "job {}: every rank has left", run_.number);
  phase_ = Phase::kLeaving;
  command([this] {
    for (const auto& client : clients_)
      if (host::Job* j = job()) j->detach(client->rank(), machine_.home(run_.number).host().now());
    return true;
  });
}

void SimJob::freeze_clients(bool frozen) {
  client_frozen_ = frozen;
  for (auto& client : clients_) client->set_frozen(frozen);
}

void SimJob::kill_clients() {
  const bool in_peace = std::ranges::all_of(clients_, [](const auto& client) { return client->finished(); });
  for (auto& client : clients_) client->kill();
  for (auto& session : sessions_) session->die();
  if (!in_peace) abort("a client died");
}

}  // namespace tensorlane::simulator
