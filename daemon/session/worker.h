// Two small pieces of threading for the session thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "daemon/session/unique_fd.h"

namespace tensorlane::session {

// Calls from other threads to one owner thread, in order. What is in it answers something that is bounded elsewhere (a
// request of a session, its end), so it needs no bound of its own. It may outlive its owner: after close() calls are
// dropped.
class CallQueue {
 public:
  CallQueue();
  // Any thread.
  void push(std::function<void()> call);
  // The owner: readable while calls wait.
  int fd() const { return wake_.get(); }
  // The owner: runs what is there.
  void run();
  void close();

 private:
  const UniqueFd wake_;
  std::mutex mutex_;
  bool closed_ = false;
  std::deque<std::function<void()>> calls_;
};

// A thread for what takes long: making segments, and giving them back. Users take turns, a step each; what one user
// wants is done in order.
class Worker {
 public:
  // A bounded piece of work, true when there is no more of it.
  using Step = std::function<bool()>;

  Worker();
  // Runs what is queued, then stops.
  ~Worker();
  void push(std::uint32_t user, Step step);

 private:
  struct Line {
    std::uint32_t user = 0;
    std::deque<Step> steps;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Line> lines_;  // of users who want something; the first one is next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tensorlane::session
