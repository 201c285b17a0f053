// What the control plane counts. Written by control's thread, read by anyone.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorlane::control {

// Values at one moment; each only ever grows.
struct ControlCounts {
  std::uint64_t messages_sent = 0, messages_received = 0;
  std::uint64_t dropped_malformed = 0;     // not a message, oversized, or from a host that has no say in it
  std::uint64_t dropped_stale = 0;         // of a job or epoch that is not there (any more)
  std::uint64_t dropped_unsent = 0;        // the peer took nothing and its queue was full
  std::uint64_t refused_connections = 0;   // keys that are not in the fabric file
  std::uint64_t unproven_connections = 0;  // ended before a message with the key of a host had come
  std::uint64_t refused_secrets = 0;       // wrong proofs of other hosts, and ranks of this one with another secret
  std::uint64_t jobs_started = 0, jobs_failed = 0, late_reports = 0;
  std::uint64_t standstill_reports = 0;  // of flows and lanes of any host
  // Of jobs_failed, those that failed before their roster was complete, and before all their flows were up.
  std::uint64_t jobs_failed_gathering = 0, jobs_failed_connecting = 0;
};

class ControlCounters {
 public:
  std::atomic<std::uint64_t> messages_sent{0}, messages_received{0}, dropped_malformed{0}, dropped_stale{0},
      dropped_unsent{0}, refused_connections{0}, unproven_connections{0}, refused_secrets{0}, jobs_started{0},
      jobs_failed{0}, late_reports{0}, standstill_reports{0}, jobs_failed_gathering{0}, jobs_failed_connecting{0};

  ControlCounts snapshot() const {
    return {messages_sent,       messages_received,    dropped_malformed,     dropped_stale,         dropped_unsent,
            refused_connections, unproven_connections, refused_secrets,       jobs_started,          jobs_failed,
            late_reports,        standstill_reports,   jobs_failed_gathering, jobs_failed_connecting};
  }
};

}  // namespace tensorlane::control
