// Threads that run what they are given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace tensorlane::torch_backend {

// Tasks run in the order of post(), one at a time: but with more than one thread a task that has not returned after
// kWaits is taken to wait for what a later one does, and the next one begins. Threads come when they are needed, and
// but for one they go afterwards. Tasks do not throw. Any thread calls; stop() is not called by a task.
// Where no thread can be started for the first of them, the caller runs it.
class Executor {
 public:
  static constexpr std::chrono::milliseconds kWaits{20};

  // At most so many threads.
  explicit Executor(std::size_t most) : most_(most) {}
  ~Executor() { stop(); }
  void post(std::function<void()> task);
  // Returns when every task that was given has run. Tasks that are given afterwards run in the thread that gives them.
  void stop();
  // Whether the caller is a task.
  bool runs_caller() const;

 private:
  void run();
  bool add_thread_locked();
  bool may_begin_locked(std::unique_lock<std::mutex>& lock);

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::size_t threads_ = 0, busy_ = 0;
  std::size_t latest_ = 0;  // number of the task that began last; 0: it has returned
  std::size_t begun_ = 0;   // tasks
  std::chrono::steady_clock::time_point latest_begun_;
  bool stopping_ = false;
};

// Runs `task` on a thread of its own that nobody waits for. False, and nothing, where none can be started.
bool detach(std::function<void()> task);

}  // namespace tensorlane::torch_backend
