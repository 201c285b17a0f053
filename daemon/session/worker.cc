#include "daemon/session/worker.h"

#include <sys/eventfd.h>

#include "common/base/assert.h"

namespace tensorlane::session {

CallQueue::CallQueue() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TL_ASSERT(wake_);
}

void CallQueue::push(std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    calls_.push_back(std::move(call));
  }
  eventfd_write(wake_.get(), 1);
}

void CallQueue::run() {
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
  std::deque<std::function<void()>> calls;
  {
    std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const std::function<void()>& call : calls) call();
}

void CallQueue::close() {
  std::deque<std::function<void()>> dropped;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(calls_);
}

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Worker::push(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Worker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace tensorlane::session
