#include "daemon/session/worker.h"

#include <sys/eventfd.h>

#include <algorithm>

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

void Worker::push(std::uint32_t user, Step step) {
  {
    std::lock_guard lock(mutex_);
    auto line = std::ranges::find(lines_, user, &Line::user);
    if (line == lines_.end()) {
      line = lines_.insert(lines_.end(), Line());
      line->user = user;
    }
    line->steps.push_back(std::move(step));
  }
  changed_.notify_one();
}

void Worker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    Step step = std::move(lines_.front().steps.front());
    lock.unlock();
    const bool done = step();
    if (done) step = nullptr;
    lock.lock();
    Line line = std::move(lines_.front());
    lines_.pop_front();
    if (done) {
      line.steps.pop_front();
    } else {
      line.steps.front() = std::move(step);
    }
    if (!line.steps.empty()) lines_.push_back(std::move(line));
  }
}

}  // namespace tensorlane::session
