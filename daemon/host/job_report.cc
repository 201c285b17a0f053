// What a job tells those who look at the host: in the log and to the timeline.
#include <fmt/format.h>

#include "common/base/log_gate.h"
#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {

// Unless the job's user has brought about too many lines.
void Job::log(const std::string& line) const {
  if (!*context_.log) return;
  if (const auto held_back = context_.log_share->pass(user(), context_.clock()))
    (*context_.log)(line + held_back_text(*held_back));
}

void Job::report_begin() {
  ports::TraceJob job{id(), epoch(), spec_.name, user(), {}};
  job.hosts.reserve(spec_.hosts.size());
  for (const ports::JobHost& host : spec_.hosts) job.hosts.push_back(host.name);
  context_.timeline->begin_job(job);
  context_.metrics->jobs_started.add();
  reported_ = true;
}

void Job::report_connected() {
  std::size_t neighbours = 0;
  std::set<std::string> names;
  for (const Set& set : sets_) {
    neighbours = std::max(neighbours, set.settled.neighbours);
    names.insert(set.settled.transports.begin(), set.settled.transports.end());
  }
  if (std::exchange(neighbours_, neighbours) == neighbours) return;
  std::string transports;
  for (const std::string& name : names) transports += (transports.empty() ? "" : " and ") + name;
  log(fmt::format("job '{}': its flows to {} {} go over {}", spec_.name, neighbours, neighbours == 1 ? "host" : "hosts",
                  transports));
}

// How long each rank here has waited for an operation that is complete, and others here for it.
void Job::note_ranks(const LocalTensor& t, Time now) {
  for (const std::uint32_t local : t.members->locals()) {
    ports::JobMetrics::PerRank& rank = metrics_->ranks[local];
    rank.operations.add();
    rank.wait_ns.add(static_cast<std::uint64_t>((now - t.submitted[local]).value));
    rank.late_ns.add(static_cast<std::uint64_t>((t.submitted[local] - t.first_arrival).value));
  }
}

// What the processes say of themselves.
void Job::read_clients() {
  for (std::size_t local = 0; local < sessions_.size(); ++local) {
    if (!sessions_[local]) continue;
    const ports::ClientTimes times = sessions_[local]->times();
    metrics_->ranks[local].blocked_ns.set(times.blocked_ns);
    metrics_->ranks[local].stream_waits.set(times.stream_waits);
    metrics_->ranks[local].process.set(times.process);
    metrics_->ranks[local].waiter.set(times.waiter);
  }
}

void Job::report_end() {
  context_.timeline->end_job(id(), epoch());
  std::uint64_t sent = 0, received = 0, demoted = 0;
  for (const Set& set : sets_) {
    if (set.settled.metrics == nullptr) continue;
    for (const ports::JobMetrics::PerClass& cls : set.settled.metrics->classes) {
      sent += cls.bytes_sent.value();
      received += cls.bytes_received.value();
      demoted += cls.bytes_demoted.value();
    }
  }
  log(fmt::format(
      "job '{}' of user {} is over on this host: {:.1f} s, {} iterations, {} bytes sent ({} of them demoted) and {} "
      "received",
      spec_.name, spec_.owner.user, to_seconds(context_.clock() - metrics_->began), metrics_->iterations.value(), sent,
      demoted, received));
}

}  // namespace tensorlane::host
