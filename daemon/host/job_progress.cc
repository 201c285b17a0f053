// How far a job has come, for those who look whether it stands still (law 21). Nothing here is on the way of a slice.
#include <algorithm>

#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

constexpr std::int64_t kReportsInDetection = 8;  // as often as control sends heartbeats

}  // namespace

void JobRail::add_progress(Time now, std::vector<ports::FlowState>* flows) const {
  for (const HostIndex peer : known_) {
    for (std::size_t f = 0; f < flows_to_peer(); ++f) {
      const ClassId cls = flow_class(f);
      const ports::FlowKey flow{job(), peer, cls};
      flows->push_back({flow.peer, cls, rail_, transport().progress(flow),
                        engine_.engine().has_sends(now, engine::Flow{flow.peer, cls})});
    }
  }
}

void Job::tell_progress(Time now) {
  if (state_ != State::kRunning || now < next_progress_) return;
  next_progress_ = now + Duration(spec_.detection.value / kReportsInDetection);
  progress_.at = now;
  progress_.flows.clear();
  progress_.ports.resize(rails_.size());
  for (const auto& rail : rails_) rail->add_progress(now, &progress_.flows);
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    const ports::RailMetrics& carried = context_.metrics->rails[r];
    ports::PortBytes& port = progress_.ports[r];
    for (std::size_t c = 0; c < port.sent.size(); ++c) {
      port.sent[c] = carried.bytes_sent[c].value();
      port.received[c] = carried.bytes_received[c].value();
    }
  }
  look_at_ages(now);
  context_.listener->on_progress(id(), progress_);
}

void Job::raise_ages(std::array<Duration, kMaxDataClasses>* ages) const {
  for (std::size_t c = 0; c < ages->size(); ++c) (*ages)[c] = std::max((*ages)[c], ages_[c]);
}

}  // namespace tensorlane::host
