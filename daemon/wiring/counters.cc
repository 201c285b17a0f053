#include "daemon/wiring/counters.h"

#include <ctime>
#include <map>
#include <string>
#include <utility>

namespace tensorlane::wiring {
namespace {

double process_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

std::vector<telemetry::ExtraCounter> daemon_counters(const control::Control& control,
                                                     const session::SessionServer& sessions,
                                                     const telemetry::TimelineRecorder& timeline,
                                                     const memory::ArenaPool& arenas,
                                                     const memory::MemoryBudget& memory,
                                                     const config::DaemonConfig& config) {
  const auto counted = [&control](std::uint64_t control::ControlCounts::*count) {
    return [&control, count] { return static_cast<double>(control.counts().*count); };
  };
  using Counts = control::ControlCounts;
  return {
      {"start_time_seconds", "When the daemon started, in seconds since 1970",
       [began = static_cast<double>(std::time(nullptr))] { return began; }},
      {"jobs_started_total", "Jobs that began on this host with all their ranks", counted(&Counts::jobs_started)},
      {"jobs_failed_total", "Jobs that failed on this host, those that never had all their ranks included",
       counted(&Counts::jobs_failed)},
      {"control_sent_messages_total", "Messages to other daemons", counted(&Counts::messages_sent)},
      {"control_received_messages_total", "Messages of other daemons", counted(&Counts::messages_received)},
      {"control_malformed_messages_total", "Of them, dropped because they made no sense",
       counted(&Counts::dropped_malformed)},
      {"control_stale_messages_total", "Of them, dropped because their job is gone, or has not begun on this host",
       counted(&Counts::dropped_stale)},
      {"control_unsent_messages_total", "Messages dropped because a peer took none", counted(&Counts::dropped_unsent)},
      {"jobs_failed_gathering_total", "Of the jobs that failed, those that never had all their ranks",
       counted(&Counts::jobs_failed_gathering)},
      {"jobs_failed_connecting_total", "Of the jobs that failed, those that some host did not get ready for",
       counted(&Counts::jobs_failed_connecting)},
      {"control_refused_connections_total", "Daemons that were refused because their key is not in the fabric",
       counted(&Counts::refused_connections)},
      {"control_unproven_connections_total", "Connections to the control port that ended without a host's key",
       counted(&Counts::unproven_connections)},
      {"refused_secrets_total", "Hosts and ranks that were refused because their secret is not the job's",
       counted(&Counts::refused_secrets)},
      {"refused_sessions_total", "Processes of this host that were refused before they joined a job",
       [&sessions] { return static_cast<double>(sessions.refused()); }},
      {"reported_late_total", "Reports of ranks that others wait for, from any host", counted(&Counts::late_reports)},
      {"standstill_reports_total", "Reports of flows and lanes that stand still, from any host",
       counted(&Counts::standstill_reports)},
      {"cpu_seconds_total", "CPU time of the daemon, all threads", [] { return process_cpu_seconds(); }},
      {"timeline_dropped_spans_total", "Spans that a lane overwrote before the timeline had written them",
       [&timeline] { return static_cast<double>(timeline.dropped()); }},
      {"leftover_segments", "Segments of sessions that have ended, which some process still has open or mapped",
       [&arenas] { return static_cast<double>(arenas.leftovers()); }},
      {"memory_bytes", "Memory of sessions and of what the daemon needs for their jobs",
       [&memory] { return static_cast<double>(memory.ledger().in_use()); }},
      {"memory_limit_bytes", "How much of it there may be: memory_limit",
       [limit = config.memory_limit.value] { return static_cast<double>(limit); }},
      {"open_sessions", "Sessions whose memory is held",
       [&sessions] { return static_cast<double>(sessions.sessions()); }}};
}

std::vector<telemetry::ExtraFamily> user_accounts(const session::SessionServer& sessions) {
  const auto account = [&sessions](session::Account which) {
    return [&sessions, which] {
      std::map<std::string, double> users;
      for (const Ledger::Row& row : sessions.in_use(which))
        users[std::to_string(row.owner.user)] += static_cast<double>(row.amount);
      return std::vector<std::pair<std::string, double>>(users.begin(), users.end());
    };
  };
  return {{"user_sessions", "Sessions of a user", "user", account(session::kSessions)},
          {"user_tensors", "Tensors that sessions of a user have registered", "user", account(session::kTensors)},
          {"user_segments", "Segments of shared memory of a user", "user", account(session::kSegments)},
          {"user_descriptors", "Descriptors that are charged to a user", "user", account(session::kDescriptors)}};
}

}  // namespace tensorlane::wiring
