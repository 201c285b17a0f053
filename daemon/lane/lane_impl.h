// What a lane's face is made of: for lane.cc and lane_port.cc.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "daemon/lane/lane.h"
#include "daemon/lane/links.h"
#include "daemon/lane/loop.h"
#include "daemon/lane/preparer.h"

namespace tensorlane::lane {

struct Lanes::Impl {
  // A job that begins or runs.
  struct Entry {
    std::shared_ptr<const ports::JobSpec> spec;
    std::size_t home = 0;  // the lane that it lives on
  };

  explicit Impl(const LaneConfig& c)
      : config(c), preparer([this](const Command& command) { return post(command).ok(); }) {}

  Status open(std::span<const host::HostPorts> ports);
  Status post(Command command) { return loops[command.lane]->post(std::move(command)); }
  Status prepare(const ports::JobSpec& spec, Preparer::Step step, Command command);
  // What is known of the job: no spec where there is none.
  Entry find(JobId job);
  Entry add(const ports::JobSpec& spec);
  void forget(JobId job, Epoch epoch);

  // Runs `command` on the job if it is still there.
  template <typename F>
  Status on_job(JobId id, F command) {
    const std::size_t home = find(id).home;
    return post({id,
                 [&loop = *loops[home], id, command = std::move(command)]() mutable {
                   if (host::Job* job = loop.host().find(id)) command(*job);
                   return true;
                 },
                 home});
  }

  const LaneConfig config;
  std::vector<host::HostPorts> ports;  // by lane
  std::unique_ptr<Switchboard> switchboard;
  std::vector<std::unique_ptr<Loop>> loops;  // by lane
  std::mutex specs_mutex;
  std::map<JobId, Entry> specs;  // under specs_mutex
  Preparer preparer;             // the last member: its thread uses the others
};

}  // namespace tensorlane::lane
