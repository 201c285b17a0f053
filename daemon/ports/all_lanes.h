// What the lanes of a daemon have counted together.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/ports/telemetry.h"

namespace tensorlane::ports {

// The metrics of all lanes, which outlive it. Any thread.
class AllLanes {
 public:
  AllLanes(const LaneMetrics& only) : lanes_{&only} {}  // NOLINT(google-explicit-constructor): one lane is all there is
  explicit AllLanes(std::vector<const LaneMetrics*> lanes) : lanes_(std::move(lanes)) {}

  // As they are now. Each lane counts what it does itself, so sums are right; a job that has rails on several lanes is
  // one.
  std::unique_ptr<const LaneMetrics> sum() const {
    auto all = std::make_unique<LaneMetrics>();
    for (const LaneMetrics* lane : lanes_) add(*all, *lane);
    add_jobs(*all);
    return all;
  }
  // By lane.
  const std::vector<const LaneMetrics*>& each() const { return lanes_; }

 private:
  static void add(Counter& to, const Counter& from) { to.add(from.value()); }
  static void add(DurationHistogram& to, const DurationHistogram& from) { to.add(from); }
  static void add(ClassMetrics& to, const ClassMetrics& from) {
    using C = ClassMetrics;
    for (const auto counter : {&C::bytes_sent, &C::bytes_received, &C::operations_sent, &C::operations_received,
                               &C::tensors_completed, &C::tensors_failed, &C::window_full})
      add(to.*counter, from.*counter);
    for (const auto histogram : {&C::queue_wait, &C::straggler, &C::completion}) add(to.*histogram, from.*histogram);
  }
  static void add(RailMetrics& to, const RailMetrics& from) {
    for (std::size_t c = 0; c < to.bytes_sent.size(); ++c) {
      add(to.bytes_sent[c], from.bytes_sent[c]);
      add(to.bytes_received[c], from.bytes_received[c]);
    }
  }
  static void add(TransportMetrics& to, const TransportMetrics& from) {
    using T = TransportMetrics;
    for (const auto counter : {&T::accepted, &T::refused, &T::unauthenticated_dropped, &T::payloads_dropped,
                               &T::flows_resumed, &T::frames_resent, &T::payloads_placed, &T::payloads_copied,
                               &T::ports_down, &T::retries_exhausted, &T::receivers_not_ready, &T::access_errors})
      add(to.*counter, from.*counter);
  }
  static void add(LaneMetrics& to, const LaneMetrics& from) {
    using L = LaneMetrics;
    for (std::size_t c = 0; c < to.classes.size(); ++c) add(to.classes[c], from.classes[c]);
    for (std::size_t r = 0; r < to.rails.size(); ++r) add(to.rails[r], from.rails[r]);
    add(to.transport, from.transport);
    for (const auto counter : {&L::slices_sent,
                               &L::slices_reduced,
                               &L::bytes_reduced,
                               &L::bytes_copied,
                               &L::stale_grants,
                               &L::protocol_errors,
                               &L::late_reports,
                               &L::jobs_started,
                               &L::jobs_failed,
                               &L::cpu_ns,
                               &L::work_cpu_ns,
                               &L::work_turns,
                               &L::loops,
                               &L::sleeps,
                               &L::jobs,
                               &L::sessions,
                               &L::operations_pending,
                               &L::staging_bytes,
                               &L::staging_limit_bytes,
                               &L::messages_open})
      add(to.*counter, from.*counter);
    for (std::size_t c = 0; c < to.oldest_operation_ns.size(); ++c) {
      Counter& oldest = to.oldest_operation_ns[c];
      oldest.set(std::max(oldest.value(), from.oldest_operation_ns[c].value()));
    }
    to.oldest_message_ns.set(std::max(to.oldest_message_ns.value(), from.oldest_message_ns.value()));
    to.flows.add(from.flows);
    to.paths.add(from.paths);
  }
  void add_jobs(LaneMetrics& to) const {
    std::map<std::tuple<JobId, std::uint32_t, std::string>, std::shared_ptr<JobMetrics>> jobs;
    for (const LaneMetrics* lane : lanes_) {
      for (const auto& part : lane->job_list.all()) {
        std::shared_ptr<JobMetrics>& job = jobs[{part->id, part->user, part->name}];
        if (job == nullptr) {
          job = std::make_shared<JobMetrics>();
          job->name = part->name;
          job->id = part->id;
          job->user = part->user;
          job->began = part->began;
          job->ranks = std::vector<JobMetrics::PerRank>(part->ranks.size());
          to.job_list.add(job);
        }
        job->add(*part);
      }
    }
  }

  std::vector<const LaneMetrics*> lanes_;
};

}  // namespace tensorlane::ports
