// The timeline: spans of a lane as Chrome Trace Event JSON, written by a thread of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/telemetry.h"

namespace tensorlane::telemetry {

struct TimelineConfig {
  std::string host;                      // the trace's process name
  int sort_index = 0;                    // order of hosts where traces are merged
  std::vector<std::string> class_names;  // data classes by ClassId
  std::vector<int> class_dscps;
  std::size_t capacity = 1 << 16;  // spans that wait for the writer; more are dropped and counted
};

// One lane writes (record, name), the writer's thread reads. A file that cannot be written (full disk) ends the
// recording with one error in the log; the daemon goes on.
class TimelineRecorder final : public ports::Timeline {
 public:
  explicit TimelineRecorder(const TimelineConfig& config);
  ~TimelineRecorder() override;  // stops

  // Opens (truncates) the file and records until stop(). Errors: kUnavailable with the path and reason.
  Status start(const std::string& path);
  // Writes what waits and closes the file. Idempotent. Any thread but the lane's.
  void stop();

  bool enabled() const override;
  void record(const ports::TraceSpan& span) override;
  void name(JobId job, TensorId tensor, const char* name) override;

  std::uint64_t recorded() const;
  std::uint64_t dropped() const;
  // True once a write failed; record() then does nothing.
  bool broken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What Horovod's timeline calls it, where there is such a name.
const char* phase_name(ports::TraceSpan::Phase phase);

}  // namespace tensorlane::telemetry
