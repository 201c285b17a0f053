// One simulated machine: the lanes of a daemon, each with a host of engines, and the jobs that they carry.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulator/host/job.h"
#include "simulator/host/lane.h"

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
    // Messages of a job go between `from` and `to`, which makes the flows for it.
    std::function<void(std::size_t job, HostIndex from, HostIndex to)> wants_flows;
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
  // Where a job lives, and what has a rail.
  SimLane& home(std::size_t job) const { return *lanes_[job % lanes_.size()]; }
  SimLane& lane(RailIndex rail) const { return *lanes_[config_.rails[rail.value].lane]; }
  SimTransport& transport(RailIndex rail) { return *transports_[rail.value]; }
  bool dead() const { return dead_; }
  void tell_aborted();
  // Of a job, blocks of work that are under way.
  std::size_t blocks_of(JobId job) const;
  bool can_go(std::size_t job, RailIndex rail, engine::Flow flow) const;
  // A job's engine has chosen so many bytes of this class; and a block of work.
  void picks(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes);
  void works(RailIndex rail, ClassId cls) const;
  // A frame of a message of a job has gone in this class.
  void message_goes(std::size_t job, RailIndex rail, ClassId cls, std::uint64_t bytes);

 private:
  host::HostConfig host_config() const;
  host::HostPorts host_ports();
  std::unique_ptr<SimTransport> make_transport(RailIndex rail, ports::FlowOwner& owner);
  SimJob* find(JobId job) const;
  void make_lane(std::size_t number);
  std::size_t carry_out(std::size_t lane);
  bool has_commands(std::size_t lane) const;
  void sleeps(std::size_t lane, Time now, Time until) const;
  void block_begins(SimLane& lane, const host::JobBlock& block);
  void wake();
  void turn_of(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes);
  void heard(HostIndex from, RailIndex rail, const Heartbeat& beat);
  void beat();
  Heartbeat heartbeat() const;

  // ---- ports::LaneListener ----
  void on_job_connected(JobId job) override;
  void on_job_failed(JobId job, const Status& cause) override;
  void on_job_closed(JobId job) override;
  void on_flows_wanted(JobId job, HostIndex peer) override;

  const HostIndex self_;
  Context context_;
  Random random_;
  SimMemory memory_;
  ports::NoTimeline timeline_;
  host::HostConfig config_;
  host::HostPorts ports_;
  std::vector<SimTransport*> transports_;      // by rail
  std::vector<std::unique_ptr<SimJob>> jobs_;  // by number; outlive the engines
  std::vector<std::unique_ptr<SimLane>> lanes_;
  bool frozen_ = false, dead_ = false;
  std::vector<std::vector<Time>> heard_;  // by rail and host
};

}  // namespace tensorlane::simulator
