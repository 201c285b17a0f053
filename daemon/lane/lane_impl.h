// What a lane is made of: for lane.cc, the loop, and lane_port.cc, which gives it commands.
#pragma once

#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/spin_budget.h"
#include "daemon/host/host.h"
#include "daemon/lane/backlogs.h"
#include "daemon/lane/lane.h"
#include "daemon/lane/preparer.h"

namespace tensorlane::lane {

inline constexpr std::size_t kMailbox = 65536;

struct Lane::Impl {
  Impl(const LaneConfig& c, const host::HostPorts& p)
      : config(c), ports(p), preparer([this](const Command& command) { return post(command).ok(); }) {}
  ~Impl() {
    for (int fd : {epoll_fd, mailbox_fd}) {
      if (fd >= 0) ::close(fd);
    }
  }

  Status open();
  Status post(Command command);
  Status prepare(const ports::JobSpec& spec, Preparer::Step step, Command command);
  void run();
  std::size_t turn();
  void take_mail();
  std::size_t commands();
  void reap();
  void maybe_sleep();
  void set_cpu();
  int longest_sleep_ms() const;
  bool arm_sessions();
  bool arm_transports();
  void disarm_sessions();
  void watch(int fd, bool on, std::uint32_t how = 0);
  std::shared_ptr<const ports::JobSpec> spec_of(JobId job);
  void forget(JobId job);

  // Runs `command` on the job if it is still there.
  template <typename F>
  Status on_job(JobId id, F command) {
    return post({id, [this, id, command = std::move(command)]() mutable {
                   if (host::Job* job = host->find(id)) command(*job);
                   return true;
                 }});
  }

  const LaneConfig config;
  const host::HostPorts ports;
  ports::LaneListener* listener = nullptr;
  std::unique_ptr<host::Host> host;
  Backlogs backlogs;
  int epoll_fd = -1, mailbox_fd = -1;
  std::vector<int> watched, wanted;  // wake descriptors of sessions: in epoll; of arm_sessions(), kept for its storage
  Mailbox<Command> mailbox{kMailbox};
  std::atomic<bool> mail{false};
  bool mail_left = false;  // the last turn left some there
  std::atomic<bool> stopping{false};
  std::thread thread;
  std::mutex specs_mutex;
  std::map<JobId, std::shared_ptr<const ports::JobSpec>> specs;  // of jobs that begin or run; under specs_mutex
  SpinBudget budget{config.spin, config.spin_budget};
  Preparer preparer;  // the last member: its thread uses the others
};

}  // namespace tensorlane::lane
