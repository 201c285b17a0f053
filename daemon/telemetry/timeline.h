// The timeline: spans of a lane as Chrome Trace Event JSON, written by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/telemetry.h"

namespace tensorlane::telemetry {

struct TimelineConfig {
  std::string host;                      // the trace's process name
  int sort_index = 0;                    // order of hosts where traces are merged
  std::vector<std::string> class_names;  // data classes by ClassId
  std::vector<int> class_dscps;
  std::size_t capacity = 1 << 16;  // spans that wait for the writer; more are dropped and counted
  Bytes limit = mib(1024);         // of the file; then it becomes FILE.1, and a new one begins
};

// One lane writes (record, name, begin_job, end_job), the writer's thread reads. A file that cannot be written (full
// disk) ends the recording with one error in the log; the daemon goes on.
//
// Times are those of the wall clock, in microseconds since 1970, so that traces of several hosts lie on one axis as far
// as their clocks agree. A file takes the distance between the clocks once, when it begins: what it says is not torn
// when the wall clock is set, and what was measured inside a host stays exact.
//
// Names are kept while the timeline is on and their job lives. A tensor that leaves its number to another keeps its
// name for the spans that wait, but there are at most `capacity` of such names: spans of older ones are called "tensor
// N".
class TimelineRecorder final : public ports::Timeline {
 public:
  explicit TimelineRecorder(const TimelineConfig& config);
  ~TimelineRecorder() override;  // stops

  // Opens the file (files::create) and records until stop(). What was there before becomes FILE.1, in the place of
  // what that was. One process at a time writes a file (flock). Errors: kUnavailable with the path and reason.
  Status start(const std::string& path);
  // Writes what waits and closes the file. Idempotent. Any thread but the lane's.
  void stop();

  bool enabled() const override;
  void record(const ports::TraceSpan& span) override;
  void begin_job(JobId job, Epoch epoch, const std::string& name, const std::vector<std::string>& hosts) override;
  void end_job(JobId job, Epoch epoch) override;
  void name(JobId job, TensorId tensor, const char* name) override;

  std::uint64_t recorded() const;
  std::uint64_t dropped() const;
  std::size_t names() const;  // of tensors, that are kept now
  // True once a write failed; record() then does nothing.
  bool broken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What Horovod's timeline calls it, where there is such a name.
const char* phase_name(ports::TraceSpan::Phase phase);

}  // namespace tensorlane::telemetry
