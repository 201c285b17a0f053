// What the jobs and tensors of spans are called, and whose they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/ports/telemetry.h"

namespace tensorlane::telemetry {

// Any thread; no lock is held for long, because lanes wait for it when a job begins or registers tensors.
//
// A span has the names that its job and its tensor had when it began: numbers of tensors and ids of jobs are used
// again. Names are kept within a bound, of each user and of all: beyond it a tensor is called "tensor N". Those of jobs
// and tensors that are gone stay until forget().
class SpanNames {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;  // with what it takes to find them
  static constexpr std::size_t kMostBytesOfUser = kMostBytes / 2;
  static constexpr std::size_t kMostNameBytes = 128;  // longer ones are cut
  static constexpr std::size_t kMostJobs = 4096;      // of the others nothing is known
  static constexpr std::size_t kMostFormer = 65536;   // former names, the oldest go first
  static constexpr std::size_t kMostFormerOfTensor = 16;

  void begin(const ports::TraceJob& job, Time now);
  void end(JobId job, Epoch epoch, Time now);
  void name(JobId job, TensorId tensor, std::string_view name, Time now);

  // Forgets what has been gone since before `then`: a job at a time, elsewhere than under the lock. Not on a lane.
  void forget(Time then);
  void clear();

  struct Of {
    std::string job, tensor, peer;
    Epoch epoch;                        // 0: nobody knows the job
    std::optional<std::uint32_t> user;  // none: nobody knows the job
    bool shown = true;                  // the host takes part in the job
  };
  // Of a few spans, for who asks from this host; empty: it does not matter. Not on a lane.
  std::vector<Of> of(std::span<const ports::TraceSpan> spans, const std::string& host = {}) const;
  // Whether there is such a job, gone or not, and whose it is.
  std::optional<std::uint32_t> user_of(JobId job, Epoch epoch) const;

  std::size_t names() const;  // of tensors, that are kept now
  std::size_t bytes() const;

 private:
  struct Former {
    std::string name;
    Time until;  // spans that began before have it
  };
  struct Tensor {
    std::string name;            // empty: there was no room
    std::vector<Former> former;  // oldest first
  };
  struct Job {
    ports::TraceJob job;
    Time began;
    std::optional<Time> ended;
    std::unordered_map<std::uint32_t, Tensor> tensors;  // by TensorId
    std::size_t bytes = 0;                              // of its names
  };
  static constexpr std::size_t kOverhead = 96;  // of a name, about
  struct Replaced {
    JobId job;
    Epoch epoch;
    TensorId tensor;
    Time until;
  };

  const Job* find(JobId job, Time then) const;
  Of of(const ports::TraceSpan& span, const std::string& host) const;
  std::string keep(Job& job, std::string_view name);
  bool charge(Job& job, std::size_t bytes);
  void give_back(Job& job, std::size_t bytes);
  void drop_former(Job& job, Tensor& tensor);
  void drop_oldest_former();

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::deque<Job>> jobs_;  // guarded by mutex_: by JobId, in the order in which they began
  std::deque<Replaced> replaced_;                  // the same: where there are former names, oldest first
  std::size_t kept_jobs_ = 0, bytes_ = 0;          // the same
  std::map<std::uint32_t, std::size_t> users_;     // the same: bytes, by uid
};

}  // namespace tensorlane::telemetry
