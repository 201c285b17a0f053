// What takes long happens here, not on a lane (law 20): memory for a lane's commands is taken, and what a lane has no
// use for any more is given back.
//
// One thread. Users take turns, a bounded piece each, and so do the jobs of each user; preparations of one job, and the
// commands that wait for them, stay in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::lane {

// What a lane's thread does for one job: true when it is done, false when it wants to go on in another turn.
struct Command {
  JobId job;
  std::function<bool()> run;
  std::size_t lane = 0;  // whose
};

class Preparer {
 public:
  static constexpr std::size_t kMaxWaiting = 65536;
  // A bounded piece of work, on the preparer's thread; true when there is no more of it.
  using Step = std::function<bool()>;

  // `deliver` gives a command to the lane: false when it takes none now. Any thread; called under the preparer's lock.
  explicit Preparer(std::function<bool(const Command&)> deliver) : deliver_(std::move(deliver)) {}
  ~Preparer() { stop(); }

  void start();
  // What has not been delivered never is. Idempotent.
  void stop();

  // Delivers `command` of a job of `user` when `step` has said that it is ready. False when kMaxWaiting tasks wait. Any
  // thread.
  [[nodiscard]] bool add(std::uint32_t user, Step step, Command command);
  // Delivers `command` behind what the job waits for. False, and nothing is done, when it waits for nothing. Any
  // thread.
  [[nodiscard]] bool add_behind(const Command& command);
  // Forgets what the job waits for: its commands are not delivered. Any thread.
  void cancel(JobId job);
  // Lets go of it on the preparer's thread. Any thread.
  void dispose(std::shared_ptr<void> object);
  // How often the thread has done a piece of work, or looked for one: at least twice in a second, unless it is stuck or
  // a piece takes longer. Any thread.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  struct Task {
    Step step;
    Command command;
  };
  struct Queue {
    JobId job;
    std::uint32_t user = 0;
    std::deque<Task> tasks;
    bool cancelled = false;  // while its first task is worked on
  };

  std::shared_ptr<Queue> find(JobId job) const;
  void run();
  void take_turn(std::unique_lock<std::mutex>& lock);
  void deliver_first(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Queue>& queue);

  const std::function<bool(const Command&)> deliver_;
  std::thread thread_;
  std::atomic<std::uint64_t> turns_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  bool stopping_ = false;
  std::size_t waiting_ = 0;
  std::deque<std::shared_ptr<Queue>> queues_;          // of jobs that wait for something; a user's first one is next
  std::uint64_t given_ = 0;                            // turns
  std::map<std::uint32_t, std::uint64_t> last_turns_;  // by user: which one that was; while anybody waits for anything
  std::vector<std::shared_ptr<void>> disposed_;
};

}  // namespace tensorlane::lane
