#include "client-lib/torch/executor.h"

#include <utility>

namespace tensorlane::torch_backend {

void Executor::post(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    task();
    return;
  }
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_one();
}

void Executor::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Executor::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes without the lock
    lock.lock();
  }
}

}  // namespace tensorlane::torch_backend
