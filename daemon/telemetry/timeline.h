// The timeline: spans of all lanes as Chrome Trace Event JSON, written by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::telemetry {

// Follows the lanes' rings. What a lane overwrites before it is written is lost and counted. A file that cannot be
// written (full disk) ends the recording with one error in the log; the daemon goes on.
//
// Times are those of the wall clock, in microseconds since 1970, so that traces of several hosts lie on one axis as far
// as their clocks agree. A file takes the distance between the clocks once, when it begins: what it says is not torn
// when the wall clock is set, and what was measured inside a host stays exact.
class TimelineRecorder final {
 public:
  // `limit`: of the file; then it becomes FILE.1, and a new one begins. `store` outlives it.
  explicit TimelineRecorder(SpanStore& store, Bytes limit = mib(1024));
  ~TimelineRecorder();  // stops
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  // Opens the file (files::create) and records from now until stop(). What was there before becomes FILE.1, in the
  // place of what that was. One process at a time writes a file (flock). Errors: kUnavailable with the path and reason.
  Status start(const std::string& path);
  // Writes what waits and closes the file. Idempotent. Any thread but a lane's.
  void stop();

  // Any thread.
  bool enabled() const;
  std::uint64_t recorded() const;
  std::uint64_t dropped() const;
  // True once a write failed; nothing is recorded then.
  bool broken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorlane::telemetry
