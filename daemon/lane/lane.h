// The loop that drives a host of engines: it polls transports and sessions, takes commands, and sleeps when nothing is
// to be done.
//
// One thread drives, and one beside it prepares what takes long (preparer.h). Other threads speak to it through
// LanePort, whose calls are queued. What it tells them goes through LaneListener.
#pragma once

#include <memory>

#include "daemon/host/config.h"
#include "daemon/ports/job.h"

namespace tensorlane::lane {

struct LaneConfig : host::HostConfig {
  Duration spin = microseconds(20);  // how long an idle loop polls before it blocks; 0 on machines without a spare core
  double spin_budget = 0.25;         // at most this share of the time is spent polling in vain (law 17)
  int cpu = -1;                      // pin the thread there; -1: anywhere
};

class Lane final : public ports::LanePort {
 public:
  // What `ports` points to outlives the lane. Errors of make_transport (a port in use...), or of the kernel's
  // descriptors.
  static Result<std::unique_ptr<Lane>> create(const LaneConfig& config, const host::HostPorts& ports);
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
  struct Impl;
  explicit Lane(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorlane::lane
