// What a lane is made of: for lane.cc, the loop, and lane_port.cc, which gives it commands.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/log_share.h"
#include "daemon/lane/backlogs.h"
#include "daemon/lane/job.h"
#include "daemon/lane/lane.h"
#include "daemon/lane/prepared.h"
#include "daemon/lane/preparer.h"
#include "daemon/lane/users.h"

namespace tensorlane::lane {

inline constexpr std::size_t kMailbox = 65536;

// A NIC: its transport, which reports here, and what its jobs share of it.
struct Lane::Rail final : ports::FrameSink {
  Rail(Lane::Impl& of, RailIndex i, const RailConfig& c) : lane(of), index(i), config(c), control(c.control_limit) {}

  Result<std::span<std::byte>> on_header(const ports::FlowKey& flow, const protocol::FrameHeader& header) override;
  void on_frame(const ports::FlowKey& flow, const protocol::FrameHeader& header) override;
  void on_sent(const ports::FlowKey& flow, std::uint64_t token) override;
  void on_flow_up(const ports::FlowKey& flow) override;
  void on_flow_down(const ports::FlowKey& flow, const Status& cause) override;

  Lane::Impl& lane;
  const RailIndex index;
  const RailConfig& config;
  TokenBucket control;                          // of all control frames (law 10)
  std::array<Turn, kMaxDataClasses + 1> turns;  // which user's it is to send in a class
  // Bytes in flight of flows that stand still: they take nothing of the window from flows that move. And whether the
  // window has kept somebody waiting since it was last looked which flows those are.
  std::array<Bytes, kMaxDataClasses> standing{};
  std::array<bool, kMaxDataClasses> full{};
  Time next_look;
  std::unique_ptr<ports::Transport> transport;  // the last member: it may speak to this sink while it closes
};

struct Lane::Impl {
  Impl(const LaneConfig& c, const LaneRooms& r)
      : config(c),
        rooms(r),
        users(c.rails.size()),
        preparer([this](const Command& command) { return post(command).ok(); }) {}
  ~Impl() {
    for (int fd : {epoll_fd, mailbox_fd}) {
      if (fd >= 0) ::close(fd);
    }
  }

  Status open();
  Status post(Command command);
  Status prepare(const ports::JobSpec& spec, Preparer::Step step, Command command);
  void run();
  bool begin(JobStart& start);
  void take_mail();
  std::size_t commands();
  std::size_t egress(Rail& rail);
  bool has_sends(const Rail& rail, ClassId cls) const;
  std::size_t share(Rail& rail, ClassId cls, std::uint64_t quantum, std::uint64_t most, Bytes* credit);
  std::size_t work();
  void housekeeping();
  void look_for_standing(Rail& rail);
  void maybe_sleep();
  int longest_sleep_ms() const;
  bool arm_sessions();
  bool arm_transports();
  void disarm_sessions();
  void watch(int fd, bool on, std::uint32_t how = 0);
  void reap();
  void retire_some();
  std::shared_ptr<const ports::JobSpec> spec_of(JobId job);
  void forget(JobId job);

  Job* find(JobId id) {
    for (auto& job : jobs) {
      if (job->id() == id) return job.get();
    }
    return nullptr;
  }
  // Runs `command` on the job if it is still there.
  template <typename F>
  Status on_job(JobId id, F command) {
    return post({id, [this, id, command = std::move(command)]() mutable {
                   if (Job* job = find(id)) command(*job);
                   return true;
                 }});
  }

  const LaneConfig config;
  const LaneRooms rooms;
  ports::LaneListener* listener = nullptr;
  std::vector<std::unique_ptr<Rail>> rails;
  LogShare log_share;
  Surroundings around;
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<Job>> ended;  // that still have regions
  Users users;                              // of `jobs`
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
  Time now, idle_since, next_housekeeping, window_start;
  Duration spun{};    // spent polling in vain since window_start
  Preparer preparer;  // the last member: its thread uses the others
};

}  // namespace tensorlane::lane
