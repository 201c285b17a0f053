// The thread of one lane: it drives a host of engines, and sleeps when nothing is to be done.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/spin_budget.h"
#include "daemon/host/host.h"
#include "daemon/lane/backlogs.h"
#include "daemon/lane/lane.h"
#include "daemon/lane/links.h"
#include "daemon/lane/preparer.h"

namespace tensorlane::lane {

class Loop {
 public:
  // What it has others do. Called on its thread.
  struct Callbacks {
    std::function<void(std::shared_ptr<void>)> dispose;  // lets go of it, on a thread that has the time
    std::function<void(JobId, Epoch)> over;              // a job that lived here has ended
  };
  // `links`: to the other lanes. All outlive it.
  Loop(const LaneConfig& config, const host::HostPorts& ports, LaneLinks& links, Callbacks callbacks);
  ~Loop();
  // Errors: those of the ports' make_transport, or of the kernel's descriptors.
  Status open();

  void start(ports::LaneListener& listener);
  // Ends the thread; what waits is not carried out. Then finish() waits for the lane's workers, and once those of all
  // lanes have nothing to do any more, clear() lets go of what jobs have. All idempotent.
  void stop();
  void finish() { ports_.executor->finish(); }
  void clear();
  // A command for its thread. Any thread. Errors: kResourceExhausted.
  Status post(Command command);

  // The thread's.
  host::Host& host() { return *host_; }
  ports::LaneListener& listener() { return *listener_; }

 private:
  static constexpr std::size_t kMailbox = 65536;

  void run();
  std::size_t turn();
  void take_mail();
  std::size_t commands();
  void reap();
  void maybe_sleep();
  void set_cpu();
  void set_thread() const;
  int longest_sleep_ms() const;
  bool arm_sessions();
  bool arm_transports();
  void disarm_sessions();
  void watch(int fd, bool on, std::uint32_t how = 0);

  const LaneConfig& config_;
  const host::HostPorts ports_;
  LaneLinks& links_;
  const Callbacks callbacks_;
  ports::LaneListener* listener_ = nullptr;
  std::unique_ptr<host::Host> host_;
  std::vector<ports::Transport*> transports_;  // of host_
  Backlogs backlogs_;
  int epoll_fd_ = -1, mailbox_fd_ = -1;
  std::vector<int> watched_, wanted_;  // wake descriptors of sessions: in epoll; of arm_sessions(), for its storage
  Mailbox<Command> mailbox_{kMailbox};
  std::atomic<bool> mail_{false};
  bool mail_left_ = false;  // the last turn left some there
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  SpinBudget budget_;
};

}  // namespace tensorlane::lane
