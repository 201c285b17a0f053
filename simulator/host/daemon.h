// One simulated machine: a daemon's host of engines (daemon/host), the same code as in a daemon, driven by the virtual
// clock over simulated ports; and the jobs that it carries.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/host/host.h"
#include "simulator/checkers/fairness.h"
#include "simulator/host/executor.h"
#include "simulator/host/job.h"

namespace tensorlane::simulator {

class SimDaemon final : private ports::LaneListener {
 public:
  struct Context {
    const Scenario& scenario;  // of the first job: what it says of machines is true of this one
    EventQueue& events;
    std::vector<std::unique_ptr<Network>>& networks;  // by rail
    std::vector<std::unique_ptr<JobRun>>& runs;       // by number
    Findings& findings;
    const Trace& trace;
  };
  SimDaemon(HostIndex self, Context context, Random random);
  ~SimDaemon() override;

  void start();

  // Faults.
  void set_frozen(bool frozen);
  void kill();

  // It can still speak for itself: not dead, and not frozen for ever.
  bool alive() const { return !dead_ && !frozen_; }
  bool frozen() const { return frozen_ && !dead_; }
  // Its part of a job; null where it has none.
  SimJob* job(std::size_t number) const { return number < jobs_.size() ? jobs_[number].get() : nullptr; }
  bool resolved() const;
  // What must hold when everything is over and quiet.
  void check_quiet();
  // Ends the engines, and checks their logs. Nothing comes after it.
  void check_logs();
  std::string describe() const;
  std::uint64_t resent() const;
  std::uint64_t replayed() const;  // stale frames that were sent to it
  std::uint64_t lies() const;      // that it has told

  // ---- for its jobs ----
  HostIndex self() const { return self_; }
  EventQueue& events() { return context_.events; }
  Findings& findings() { return context_.findings; }
  const Trace& trace() const { return context_.trace; }
  SimMemory& memory() { return memory_; }
  const host::HostConfig& config() const { return config_; }
  const host::HostPorts& ports() const { return ports_; }
  host::Host& host() { return *host_; }
  SimTransport& transport(RailIndex rail) { return *transports_[rail.value]; }
  bool dead() const { return dead_; }
  // How far the host is with its work.
  Time now() const { return std::max(local_, context_.events.now()); }
  void wake();
  void tell_aborted();
  // Of a job, blocks of work that are under way.
  std::size_t blocks_of(JobId job) const;
  bool can_go(std::size_t job, RailIndex rail, engine::Flow flow) const;
  // A job's engine has chosen so many bytes of this class; and a block of work.
  void picks(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes);
  void works(ClassId cls) const;

 private:
  host::HostConfig host_config() const;
  host::HostPorts host_ports();
  std::unique_ptr<SimTransport> make_transport(RailIndex rail, ports::FrameSink& sink);
  SimJob* find(JobId job) const;
  void turn();
  void sleep();
  void block_begins(const ports::Block& block);
  void heard(HostIndex from, RailIndex rail, const Heartbeat& beat);
  void beat();
  Heartbeat heartbeat() const;

  // ---- ports::LaneListener ----
  void on_job_connected(JobId job) override;
  void on_job_failed(JobId job, const Status& cause) override;
  void on_job_closed(JobId job) override;

  const HostIndex self_;
  Context context_;
  Random random_;
  SimMemory memory_;
  SimExecutor executor_;
  ports::LaneMetrics metrics_;
  ports::NoTimeline timeline_;
  host::HostConfig config_;
  host::HostPorts ports_;
  FairnessChecker fairness_;
  Time local_;                                 // how far the host is with its work
  std::vector<SimTransport*> transports_;      // by rail
  std::vector<std::unique_ptr<SimJob>> jobs_;  // by number; outlive the host's engines
  std::unique_ptr<host::Host> host_;
  bool scheduled_ = false;
  std::optional<Time> alarm_;
  bool frozen_ = false, dead_ = false;
  std::vector<std::vector<Time>> heard_;  // by rail and host
};

}  // namespace tensorlane::simulator
