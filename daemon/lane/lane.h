// The lanes of a daemon. Each is a thread that drives a host of engines: it polls its transports and the sessions of
// the jobs that live there, takes commands, and sleeps when nothing is to be done (loop.h).
//
// One thread beside them prepares what takes long (preparer.h). Other threads speak to them through LanePort, whose
// calls are queued. What they tell goes through LaneListener.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "daemon/host/config.h"
#include "daemon/ports/job.h"

namespace tensorlane::lane {

struct LaneConfig : host::HostConfig {
  Duration spin = microseconds(20);  // how long an idle loop polls before it blocks; 0 on machines without a spare core
  double spin_budget = 0.25;         // at most this share of the time is spent polling in vain (law 17)
  int cpu = -1;                      // pin lane 0 there, and lane i to cpu + i; -1: anywhere
};

// Of its thread: "lane", "lane1", ...
std::string lane_name(std::size_t lane);

class Lanes final : public ports::LanePort {
 public:
  // `ports`: by lane; what they point to outlives the lanes. `lane` and `links` in it are filled in here. Errors of
  // make_transport (a port in use...), or of the kernel's descriptors.
  static Result<std::unique_ptr<Lanes>> create(const LaneConfig& config, std::span<const host::HostPorts> ports);
  static Result<std::unique_ptr<Lanes>> create(const LaneConfig& config, const host::HostPorts& ports) {
    return create(config, std::span(&ports, 1));
  }
  ~Lanes() override;

  // Starts the threads. `listener` outlives stop().
  void start(ports::LaneListener& listener);
  // How often the thread that prepares commands has turned: at least twice in a second. Any thread.
  std::uint64_t preparer_turns() const;
  // Ends the threads; jobs that run are dropped without ceremony. Idempotent.
  void stop();

  Status start_job(ports::JobSpec spec) override;
  Status attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) override;
  Status apply_plan(JobId job, protocol::Plan added, std::function<void()> then) override;
  Status vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) override;
  Status bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) override;
  Status use_thresholds(JobId job, std::vector<double> thresholds) override;
  Status awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) override;
  Status open_flows(JobId job, HostIndex peer) override;
  Status rank_left(JobId job, Rank rank) override;
  Status abort_job(JobId job, Status cause) override;
  Status detach(JobId job, Rank rank) override;
  Status admit(const ports::JobSpec& spec, std::span<const protocol::TensorBody> tensors) const override;

 private:
  struct Impl;
  explicit Lanes(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorlane::lane
