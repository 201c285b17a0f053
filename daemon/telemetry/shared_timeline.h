// A timeline that several lanes write.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "daemon/ports/telemetry.h"

namespace tensorlane::telemetry {

// Any thread. `timeline` outlives it.
class SharedTimeline final : public ports::Timeline {
 public:
  explicit SharedTimeline(ports::Timeline& timeline) : timeline_(timeline) {}

  bool enabled() const override { return timeline_.enabled(); }
  void record(const ports::TraceSpan& span) override {
    const std::lock_guard lock(mutex_);
    timeline_.record(span);
  }
  void begin_job(JobId job, Epoch epoch, const std::string& name, const std::vector<std::string>& hosts) override {
    const std::lock_guard lock(mutex_);
    timeline_.begin_job(job, epoch, name, hosts);
  }
  void end_job(JobId job, Epoch epoch) override {
    const std::lock_guard lock(mutex_);
    timeline_.end_job(job, epoch);
  }
  void name(JobId job, TensorId tensor, const char* name) override {
    const std::lock_guard lock(mutex_);
    timeline_.name(job, tensor, name);
  }

 private:
  ports::Timeline& timeline_;
  std::mutex mutex_;
};

}  // namespace tensorlane::telemetry
