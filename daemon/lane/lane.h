// The loop that hosts engines: it polls transports and sessions, feeds events, and carries out what the engines choose.
//
// One thread owns everything here, and one beside it prepares what takes long (preparer.h). Other threads speak to it
// through LanePort, whose calls are queued. What it tells them goes through LaneListener.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "common/base/token_bucket.h"
#include "daemon/engine_log/recorder.h"
#include "daemon/ports/job.h"
#include "daemon/ports/memory.h"
#include "daemon/ports/reducer.h"
#include "daemon/ports/scratch.h"
#include "daemon/ports/telemetry.h"
#include "daemon/ports/transport.h"

namespace tensorlane::lane {

// A NIC as its lane treats it.
struct RailConfig {
  std::vector<Bytes> windows;  // by ClassId: how much may be in flight per (NIC, class), law 8
  RateLimit control_limit;     // of all control frames that leave by it, law 10
};

struct LaneConfig {
  std::uint8_t classes = 2;       // data classes
  std::vector<RailConfig> rails;  // of this host, 1 to kMaxRails
  // What each job may send in a class on each rail, by ClassId; what exceeds it is demoted (law 11). None for the last
  // class.
  std::array<RateLimit, kMaxDataClasses> job_limits{};
  bool tunes = false;  // jobs may change their classes while they run
  // Jobs learn in which order their ranks here wait for tensors, and take that as urgency (engine/urgency).
  bool observes = false;
  std::vector<double> thresholds;  // of urgency, between the classes: classes - 1, descending. For `observes`
  bool single_queue = false;       // no priorities: one class, order of arrival
  Bytes staging = mib(64);
  Duration spin = microseconds(20);  // how long an idle loop polls before it blocks; 0 on machines without a spare core
  double spin_budget = 0.25;         // at most this share of the time is spent polling in vain (law 17)
  Duration late_after = seconds(10);  // when a missing rank is reported
  bool resume_flows = false;  // a flow that loses its connection has the job's detection time to go on over a new one
  int cpu = -1;               // pin the thread there; -1: anywhere
};

// Makes what keeps the log of a job's engine on a rail, or null. Called for each when the job begins, on the thread
// that prepares it.
using RecorderMaker = std::function<std::unique_ptr<engine_log::Recorder>(const ports::JobSpec&, RailIndex)>;

// What a lane needs from the other rooms. Owned by the caller, outlive the lane.
struct LaneRooms {
  ports::Memory* memory = nullptr;
  ports::Reducer* reducer = nullptr;
  ports::LaneMetrics* metrics = nullptr;
  ports::Timeline* timeline = nullptr;
  // Makes the transport of a rail, which reports to the given sink. Called once for each, by the constructor's thread.
  std::function<Result<std::unique_ptr<ports::Transport>>(RailIndex, ports::FrameSink&)> make_transport;
  RecorderMaker make_recorder = {};       // none: nothing is recorded
  ports::ScratchPool* scratch = nullptr;  // staging, and sums that are wider than their tensors
  Ledger* regions = nullptr;              // who has how much of `memory`; null: nobody counts
};

class Lane final : public ports::LanePort {
 public:
  // Errors of make_transport (a port in use...), or of the kernel's descriptors.
  static Result<std::unique_ptr<Lane>> create(const LaneConfig& config, const LaneRooms& rooms);
  ~Lane() override;

  // Starts the thread. `listener` outlives stop().
  void start(ports::LaneListener& listener);
  // How often the thread that prepares commands has turned: at least twice in a second. Any thread.
  std::uint64_t preparer_turns() const;
  // Ends the thread; jobs that run are dropped without ceremony. Idempotent.
  void stop();

  Status start_job(ports::JobSpec spec) override;
  Status attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) override;
  Status apply_plan(JobId job, protocol::Plan added, std::function<void()> then) override;
  Status vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) override;
  Status bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) override;
  Status use_thresholds(JobId job, std::vector<double> thresholds) override;
  Status awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) override;
  Status abort_job(JobId job, Status cause) override;
  Status detach(JobId job, Rank rank) override;
  Status admit(const ports::JobSpec& spec, std::span<const protocol::TensorBody> tensors) const override;

 private:
  struct Rail;
  struct Impl;
  explicit Lane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorlane::lane
