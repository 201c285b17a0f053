// A thread that runs what it is given, in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tensorlane::torch_backend {

// The thread begins with the first task. Tasks do not throw. Any thread calls; stop() is not called by a task.
class Executor {
 public:
  ~Executor() { stop(); }
  void post(std::function<void()> task);
  // Returns when every task that was given has run. Tasks that are given afterwards run in the thread that gives them.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tensorlane::torch_backend
