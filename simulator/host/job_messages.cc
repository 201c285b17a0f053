// Messages of a job's ranks on a host: from its clients to their sessions, and back.
#include "simulator/host/daemon.h"

namespace tensorlane::simulator {

void SimJob::post(std::size_t local, std::uint32_t slot, const protocol::MessageSlot& message) {
  if (machine_.dead() || sessions_[local]->dead()) return;
  // The job has failed: so does every later message.
  if (phase_ == Phase::kClosed) return clients_[local]->messages().ended(slot, {}, Code::kAborted);
  sessions_[local]->post(slot, message);
}

void SimJob::message_over(std::size_t local, std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) {
  if (machine_.dead()) return;
  if (code == Code::kAborted && phase_ == Phase::kRunning) {
    findings_.fail("abort", "host {}: a message of rank {} failed without an abort", machine_.self().value,
                   clients_[local]->rank().value);
  }
  ++run_.progress;
  clients_[local]->messages().ended(slot, outcome, code);
}

void SimJob::open_flows_to(HostIndex peer) {
  command([this, peer] {
    if (host::Job* j = job()) j->open_flows_to(peer, machine_.home(run_.number).host().now());
    return true;
  });
}

const engine::Messages* SimJob::messages() const {
  const host::JobPart* part = nullptr;
  const JobId id = scenario_.engine.job;
  SimLane& lane = scenario_.hosts() > 1 ? machine_.lane(RailIndex(0)) : machine_.home(run_.number);
  for (const auto& of_lane : lane.host().jobs()) part = of_lane->id() == id ? of_lane.get() : part;
  return part == nullptr ? nullptr : part->messages();
}

// All that was lent for messages is back.
void SimJob::check_messages() const {
  const engine::Messages* messages = this->messages();
  if (messages == nullptr) return;
  for (std::uint16_t h = 0; h < scenario_.hosts(); ++h) {
    const engine::Messages::Lent lent = messages->lent(HostIndex(h));
    if (lent.announced == 0 && lent.unanswered == 0 && lent.open == 0) continue;
    findings_.fail("credits",
                   "host {}: all is over, but {} messages are announced to host {}, {} of it are not "
                   "answered, and {} requests are open",
                   machine_.self().value, lent.announced, h, lent.unanswered, lent.open);
  }
}

}  // namespace tensorlane::simulator
