// What a lane counts and records. Counts are written by the lane with relaxed atomics (one writer) and read by other
// threads at any time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"
#include "daemon/ports/transport.h"

namespace tensorlane::ports {

// A count with one writer thread: no locked instruction on the data path.
class Counter {
 public:
  void add(std::uint64_t n = 1) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  void set(std::uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Durations in powers of two: bucket i counts those below 2^i microseconds, the last one all longer ones (over 33 s).
class DurationHistogram {
 public:
  static constexpr std::size_t kBuckets = 26;
  void record(Duration d) {
    const auto us = static_cast<std::uint64_t>(d.value < 0 ? 0 : d.value / 1000);
    const std::size_t bucket = std::bit_width(us);
    buckets_[bucket < kBuckets ? bucket : kBuckets - 1].add();
    sum_ns_.add(static_cast<std::uint64_t>(d.value < 0 ? 0 : d.value));
  }
  std::uint64_t bucket(std::size_t i) const { return buckets_[i].value(); }
  std::uint64_t sum_ns() const { return sum_ns_.value(); }
  void add(const DurationHistogram& more) {
    for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i].add(more.bucket(i));
    sum_ns_.add(more.sum_ns());
  }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_ns_;
};

struct ClassMetrics {
  Counter bytes_sent, bytes_received, operations_sent,
      operations_received;  // transport operations of at most 256 KiB, without headers
  Counter tensors_completed, tensors_failed;
  DurationHistogram queue_wait;  // eligible -> given to the transport
  DurationHistogram straggler;   // the first arrival anywhere -> the last, as far as this host hears
  DurationHistogram completion;  // the last local rank submitted -> complete
  Counter window_full;           // times a send had to wait for the window (stalls)
};

// What passed one NIC: payload, by slot of a class.
struct RailMetrics {
  std::array<Counter, kMaxDataClasses + 1> bytes_sent, bytes_received;
};

// Data classes by ClassId; the control class is last.
inline constexpr std::size_t kControlSlot = kMaxDataClasses;
inline constexpr std::size_t metrics_slot(ClassId cls) {
  return cls == kControlClass ? kControlSlot : cls.value;
}

// A flow that is up, with the tags that it carries: what the device answered when the flow came up.
struct FlowReport {
  std::string job, peer;  // names
  ClassId cls;
  RailIndex rail;
  int dscp = -1, pcp = -1;  // -1: the device does not say
  std::string transport;    // "tcp"
  std::string path;         // "10.1.0.1:7101 -> 10.1.0.2:7101"
  std::uint32_t user = 0;   // uid, of the job
  std::string protection;   // "encrypt, AES-256-GCM"; empty: none
  JobId id = {};            // of the job; these two are set by FlowBoard
  HostIndex host = {};      // the peer
};

// How flows to each peer came to go over what they go over; it stays when they end. The lane writes when a flow comes,
// any thread reads.
class PathBoard {
 public:
  struct Entry {
    std::string peer;  // name
    RailIndex rail;
    PathReport report;
  };
  // A report without figures does not replace the figures of an earlier one with the same choice.
  void set(const std::string& peer, RailIndex rail, const PathReport& report) {
    const std::lock_guard lock(mutex_);
    PathReport& known = paths_[{peer, rail}];
    const bool less = report.measured == Time() && known.measured != Time() && chosen(report) == chosen(known);
    if (!less && !report.candidates.empty()) known = report;
  }
  // What another one has, of other rails.
  void add(const PathBoard& more) {
    for (const Entry& entry : more.all()) set(entry.peer, entry.rail, entry.report);
  }
  // By peer, then by rail; those of which there is something to say.
  std::vector<Entry> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<Entry> entries;
    for (const auto& [key, report] : paths_) {
      if (!report.candidates.empty()) entries.push_back({key.first, key.second, report});
    }
    return entries;
  }

 private:
  static std::string chosen(const PathReport& report) {
    for (const PathCandidate& candidate : report.candidates) {
      if (candidate.chosen) return candidate.transport;
    }
    return {};
  }
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, RailIndex>, PathReport> paths_;  // guarded by mutex_
};

// The flows that are up. The lane writes when one comes, is resumed or goes, which is never on the way of a slice; any
// thread reads.
class FlowBoard {
 public:
  void up(RailIndex rail, const FlowKey& flow, FlowReport report) {
    const std::lock_guard lock(mutex_);
    report.id = flow.job;
    report.host = flow.peer;
    flows_.insert_or_assign({flow, rail}, std::move(report));
  }
  // Does nothing for a flow that never came up.
  void down(RailIndex rail, const FlowKey& flow) {
    const std::lock_guard lock(mutex_);
    flows_.erase({flow, rail});
  }
  // What another one has, of other rails.
  void add(const FlowBoard& more) {
    for (FlowReport& flow : more.all()) {
      const FlowKey key{flow.id, flow.host, flow.cls};
      up(flow.rail, key, std::move(flow));
    }
  }
  // By job, peer, class, rail; the control class comes last.
  std::vector<FlowReport> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<FlowReport> reports;
    reports.reserve(flows_.size());
    for (const auto& [flow, report] : flows_) reports.push_back(report);
    return reports;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<FlowKey, RailIndex>, FlowReport> flows_;  // guarded by mutex_
};

// One job on this host.
struct JobMetrics {
  std::string name;
  JobId id;
  std::uint32_t user = 0;  // uid
  Time began;              // by the host's clock
  Counter iterations;      // operations on the tensor that had most of them, on this host
  // A rank of this host. Times are durations by this host's clock, so that hosts can be compared whatever their clocks
  // say: of two ranks, the one that waits less for the same operations was later with them.
  struct PerRank {
    Rank rank;
    Counter operations;    // complete ones
    Counter wait_ns;       // of them all, from its submission to completion
    Counter late_ns;       // from the first submission on this host to its own
    Counter blocked_ns;    // that its threads have been blocked in waits, as the client says (untrusted)
    Counter stream_waits;  // how often a GPU's stream was made to wait for an operation, as the client says (untrusted)
    Counter process, waiter;  // its process; the thread that submitted or waited last, as the client says (untrusted)
  };
  std::vector<PerRank> ranks;  // as many as the host has, from the begin on
  struct PerClass {
    Counter bytes_sent;  // in the class's flows
    Counter bytes_received;
    Counter bytes_met;        // of bytes_sent, while a less urgent class had something to send on the same rail
    Counter bytes_demoted;    // that belong to the class and went in a lower one, because its limit was used up
    Counter operations;       // complete ones on tensors, batches and not their members
    Counter completion_ns;    // of them all, from the last local submission to completion
    Counter sends, queue_ns;  // transport operations with payload; from eligible to given to the transport, of them all
  };
  std::array<PerClass, kMaxDataClasses> classes;
  Counter members;  // operations on tensors of batches, which travel with them

  // What another lane has counted of the same job; `ranks` as many or none.
  void add(const JobMetrics& more) {
    iterations.set(std::max(iterations.value(), more.iterations.value()));
    members.add(more.members.value());
    for (std::size_t c = 0; c < classes.size(); ++c) {
      for (const auto counter :
           {&PerClass::bytes_sent, &PerClass::bytes_received, &PerClass::bytes_met, &PerClass::bytes_demoted,
            &PerClass::operations, &PerClass::completion_ns, &PerClass::sends, &PerClass::queue_ns})
        (classes[c].*counter).add((more.classes[c].*counter).value());
    }
    for (std::size_t r = 0; r < std::min(ranks.size(), more.ranks.size()); ++r) {
      ranks[r].rank = more.ranks[r].rank;
      for (const auto counter : {&PerRank::operations, &PerRank::wait_ns, &PerRank::late_ns, &PerRank::blocked_ns,
                                 &PerRank::stream_waits, &PerRank::process, &PerRank::waiter})
        (ranks[r].*counter).add((more.ranks[r].*counter).value());
    }
  }
};

// The jobs that a lane has now. Any thread; not on the data path.
class JobMetricsList {
 public:
  void add(std::shared_ptr<JobMetrics> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  void remove(const std::shared_ptr<JobMetrics>& job) {
    const std::lock_guard lock(mutex_);
    std::erase(jobs_, job);
  }
  std::vector<std::shared_ptr<const JobMetrics>> all() const {
    const std::lock_guard lock(mutex_);
    return {jobs_.begin(), jobs_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<JobMetrics>> jobs_;  // guarded by mutex_
};

// TransportCounters, as they were last read.
struct TransportMetrics {
  Counter accepted, refused, unauthenticated_dropped, payloads_dropped;
  Counter flows_resumed, frames_resent;
  Counter payloads_placed, payloads_copied, ports_down, retries_exhausted, receivers_not_ready, access_errors;

  void set(const TransportCounters& now) {
    accepted.set(now.accepted);
    refused.set(now.refused);
    unauthenticated_dropped.set(now.unauthenticated_dropped);
    payloads_dropped.set(now.payloads_dropped);
    flows_resumed.set(now.flows_resumed);
    frames_resent.set(now.frames_resent);
    payloads_placed.set(now.payloads_placed);
    payloads_copied.set(now.payloads_copied);
    ports_down.set(now.ports_down);
    retries_exhausted.set(now.retries_exhausted);
    receivers_not_ready.set(now.receivers_not_ready);
    access_errors.set(now.access_errors);
  }
};

struct LaneMetrics {
  std::array<ClassMetrics, kMaxDataClasses + 1> classes;  // all rails together
  std::array<RailMetrics, kMaxRails> rails;
  Counter slices_sent;                                  // given to the transport to the last byte
  Counter slices_reduced, bytes_reduced, bytes_copied;  // arithmetic and copies inside this host
  Counter stale_grants, protocol_errors, late_reports, jobs_started, jobs_failed;
  TransportMetrics transport;
  Counter cpu_ns;         // of the lane's thread
  Counter work_cpu_ns;    // of threads that sum and copy beside it
  Counter work_turns;     // ten a second, but for those when a block of work has been under way for a second
  Counter loops, sleeps;  // turns of the lane's loop; times it blocked
  Counter jobs, sessions, operations_pending, staging_bytes,
      staging_limit_bytes;                   // now
  Counter messages_open, oldest_message_ns;  // now: sends and receives that are not over, and the age of the oldest
  // Now, by class: the age of the oldest operation that all ranks of this host have submitted, and that is not
  // complete.
  std::array<Counter, kMaxDataClasses> oldest_operation_ns;
  FlowBoard flows;
  PathBoard paths;
  JobMetricsList job_list;
};

// One span of the timeline. Names are static text.
struct TraceSpan {
  enum class Phase : std::uint8_t { kWaitForData, kOperation, kQueue, kReduce, kCopy, kReceive };
  Time begin;
  Duration length;
  JobId job;
  TensorId tensor;
  Sequence sequence;
  ClassId cls;
  Phase phase{};
  HostIndex peer;           // kQueue: where the bytes go; kReceive: where they come from
  std::uint32_t bytes = 0;  // kReduce, kCopy: read
  // kQueue and kReceive, of the frame's header: by these, the peer, the tensor and the sequence the two ends of one
  // transport operation are told from all others.
  std::uint32_t slice = 0, grant = 0, offset = 0;
  RailIndex rail;
  bool eager = false;
};

// A job, for the people who look at the timeline.
struct TraceJob {
  JobId id;
  Epoch epoch;
  std::string name;
  std::uint32_t user = 0;          // uid
  std::vector<std::string> hosts;  // names, by HostIndex
};

// Where spans go. record() is on the data path: it never blocks and drops (counted) what does not fit.
class Timeline {
 public:
  virtual ~Timeline() = default;
  virtual bool enabled() const = 0;
  virtual void record(const TraceSpan& span) = 0;
  // A job begins; it ends, and nothing of it is recorded any more: its names go, at once or later. Not on the data
  // path. Another of the same id may begin, in a later epoch, before the end of this one is told.
  virtual void begin_job(const TraceJob&) {}
  virtual void end_job(JobId, Epoch) {}
  // The name of a tensor, for the people who look at the timeline. Not on the data path.
  virtual void name(JobId job, TensorId tensor, const char* name) = 0;
};

// For hosts of which nobody keeps a timeline.
class NoTimeline final : public Timeline {
 public:
  bool enabled() const override { return false; }
  void record(const TraceSpan&) override {}
  void name(JobId, TensorId, const char*) override {}
};

}  // namespace tensorlane::ports
