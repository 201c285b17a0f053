// What other threads ask of control's thread, in the order they ask.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "common/base/units.h"
#include "daemon/ports/session.h"

namespace tensorlane::control {

class Inbox {
 public:
  // Requests wait up to this many; then they are refused. Events (a client has gone, a flow broke) are always taken:
  // there are few per session and job, and losing one would leave somebody waiting.
  static constexpr std::size_t kMaxRequests = 2 * ports::kMaxRequests;

  Inbox();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Any thread. False: refused, nothing happens.
  [[nodiscard]] bool request(std::function<void()> what);
  void event(std::function<void()> what);

  // Readable while something waits.
  int wake_fd() const { return wake_fd_; }
  // Control's thread: runs what waits, outside of the lock, until nothing does or `slice` is over. What is left keeps
  // wake_fd() readable.
  void run(Duration slice);

 private:
  void wake();
  bool take(std::function<void()>* item);

  std::mutex mutex_;
  std::deque<std::function<void()>> items_;  // guarded by mutex_
  int wake_fd_;
};

}  // namespace tensorlane::control
