#include "client-lib/torch/executor.h"

#include <system_error>
#include <thread>
#include <utility>

namespace tensorlane::torch_backend {
namespace {

thread_local const Executor* running = nullptr;

}  // namespace

bool detach(std::function<void()> task) {
  try {
    std::thread(std::move(task)).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

// It begins once the caller has let go of the lock. stop() waits for it.
bool Executor::add_thread_locked() {
  if (threads_ >= most_ || !detach([this] { run(); })) return false;
  ++threads_;
  return true;
}

void Executor::post(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    task();
    return;
  }
  tasks_.push_back(std::move(task));
  if (busy_ == threads_ && !add_thread_locked() && threads_ == 0) {
    task = std::move(tasks_.back());
    tasks_.pop_back();
    lock.unlock();
    task();
    return;
  }
  changed_.notify_all();
}

void Executor::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0; });
}

bool Executor::runs_caller() const {
  return running == this;
}

// Otherwise something has changed meanwhile.
bool Executor::may_begin_locked(std::unique_lock<std::mutex>& lock) {
  const auto end = latest_begun_ + kWaits;
  if (latest_ == 0 || std::chrono::steady_clock::now() >= end) return true;
  changed_.wait_until(lock, end);
  return false;
}

void Executor::run() {
  running = this;
  std::unique_lock lock(mutex_);
  while (true) {
    if (tasks_.empty()) {
      if (stopping_ || threads_ - busy_ > 1) break;
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      continue;
    }
    if (!may_begin_locked(lock)) continue;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    const std::size_t number = ++begun_;
    latest_ = number;
    latest_begun_ = std::chrono::steady_clock::now();
    ++busy_;
    if (!tasks_.empty() && busy_ == threads_) (void)add_thread_locked();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes without the lock
    lock.lock();
    --busy_;
    if (latest_ == number) latest_ = 0;
    changed_.notify_all();
  }
  --threads_;
  changed_.notify_all();
}

}  // namespace tensorlane::torch_backend
