// How far the rails of a job have come, for those who look whether it stands still (law 21). Nothing here is on the way
// of a slice.
#include <algorithm>

#include "daemon/host/rail_set.h"

namespace tensorlane::host {
namespace {

constexpr std::size_t kMostAwaited = 4096;  // operations of one rail that are reported at once

}  // namespace

void JobRail::add_progress(Time now, std::vector<ports::FlowState>* flows) const {
  for (const HostIndex peer : known_) {
    for (std::size_t f = 0; f < flows_to_peer(); ++f) {
      const ClassId cls = flow_class(f);
      flows->push_back({peer, cls, rail_, progress(peer, cls), has_sends(engine::Flow{peer, cls}, now)});
    }
  }
}

void RailSet::report(Time now) {
  for (auto& rail : rails_) {
    rail->publish_counts();
    rail->flush_log();
  }
  if (closing_ || broken_) return;
  for (const auto& rail : rails_) {
    if (const auto overdue = rail->overdue(now)) return break_off(*overdue);
  }
  report_awaited();
  report_progress(now);
}

void RailSet::report_awaited() {
  awaited_.clear();
  for (const auto& rail : rails_) {
    const std::span<const TensorId> all = rail->engine().awaited();
    for (const TensorId tensor : all.first(std::min(all.size(), kMostAwaited))) {
      RailsOwner::AwaitedOperation operation{tensor, {}, {}};
      if (rail->engine().awaited(tensor, &operation.since, &operation.sequence)) awaited_.push_back(operation);
    }
  }
  std::ranges::sort(awaited_);  // of equal ones the first is the oldest
  const auto same = [](const auto& a, const auto& b) { return a.tensor == b.tensor; };
  awaited_.erase(std::unique(awaited_.begin(), awaited_.end(), same), awaited_.end());
  if (awaited_.empty() && !told_awaited_) return;
  told_awaited_ = !awaited_.empty();
  owner_.rails_await(context_.lane, awaited_);
}

void RailSet::report_progress(Time now) {
  if (now < next_progress_) return;
  next_progress_ = now + report_period(spec_);
  progress_.at = now;
  progress_.flows.clear();
  progress_.ports.assign(by_index_.size(), {});
  for (const auto& rail : rails_) rail->add_progress(now, &progress_.flows);
  for (std::size_t r = 0; r < by_index_.size(); ++r) {
    if (by_index_[r] == nullptr) continue;
    const ports::RailMetrics& carried = context_.metrics->rails[r];
    for (std::size_t c = 0; c < carried.bytes_sent.size(); ++c) {
      progress_.ports[r].sent[c] = carried.bytes_sent[c].value();
      progress_.ports[r].received[c] = carried.bytes_received[c].value();
    }
  }
  owner_.rails_progress(context_.lane, progress_);
}

void RailSet::look_for_missing(std::span<const TensorId> operations, Time now) {
  missing_.clear();
  for (const TensorId tensor : operations) {
    for (const auto& rail : rails_) {
      for (const HostIndex host : rail->engine().missing(tensor)) missing_.emplace_back(tensor, host);
    }
  }
  if (!missing_.empty()) owner_.rails_missing(missing_, now);
}

void RailSet::look_at_messages(std::span<const std::uint64_t> requests, Time now) {
  if (broken_ || closing_) return;
  RailsOwner::MessagesWait waiting;
  for (const std::uint64_t request : requests) waiting.emplace_back(request, desk_->stage_of(request));
  owner_.rails_messages_wait(waiting, now);
}

std::uint64_t RailSet::staging_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& rail : rails_) bytes += rail->engine().counters().staging_bytes;
  return bytes;
}

}  // namespace tensorlane::host
