#include "daemon/lane/preparer.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tensorlane::lane {
namespace {

constexpr std::chrono::milliseconds kLaneRetry{1};
constexpr std::chrono::milliseconds kIdle{500};  // the watchdog looks whether the thread turns

}  // namespace

void Preparer::start() {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "tl-prepare");
}

void Preparer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Preparer::add(std::uint32_t user, Step step, Command command) {
  std::lock_guard lock(mutex_);
  if (waiting_ >= kMaxWaiting) return false;
  ++waiting_;
  std::shared_ptr<Queue> queue = find(command.job);
  if (queue == nullptr) {
    queue = queues_.emplace_back(std::make_shared<Queue>());
    queue->job = command.job;
    queue->user = user;
  }
  queue->tasks.push_back({std::move(step), std::move(command)});
  changed_.notify_all();
  return true;
}

bool Preparer::add_behind(const Command& command) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Queue> queue = find(command.job);
  if (queue == nullptr) return false;
  ++waiting_;
  queue->tasks.push_back({[] { return true; }, command});
  return true;
}

// Under the lock.
std::shared_ptr<Preparer::Queue> Preparer::find(JobId job) const {
  const auto found = std::ranges::find_if(
      queues_, [&](const std::shared_ptr<Queue>& queue) { return queue->job == job && !queue->cancelled; });
  return found == queues_.end() ? nullptr : *found;
}

// A task that is being worked on goes when that piece is done.
void Preparer::cancel(JobId job) {
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Queue>& queue : queues_) {
    if (queue->job == job) queue->cancelled = true;
  }
}

void Preparer::dispose(std::shared_ptr<void> object) {
  std::lock_guard lock(mutex_);
  disposed_.push_back(std::move(object));
  changed_.notify_all();
}

void Preparer::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    turns_.fetch_add(1, std::memory_order_relaxed);
    std::vector<std::shared_ptr<void>> disposed = std::exchange(disposed_, {});
    if (!disposed.empty()) {
      lock.unlock();
      for (std::shared_ptr<void>& object : disposed) {
        object.reset();
        turns_.fetch_add(1, std::memory_order_relaxed);
      }
      lock.lock();
    } else if (!queues_.empty()) {
      take_turn(lock);
    } else {
      last_turns_.clear();
      changed_.wait_for(lock, kIdle);
    }
  }
}

// One piece for the first job of the user whose last turn was longest ago; the job then is the last one.
void Preparer::take_turn(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Queue> queue =
      *std::ranges::min_element(queues_, {}, [this](const std::shared_ptr<Queue>& q) { return last_turns_[q->user]; });
  last_turns_[queue->user] = ++given_;
  bool ready = false;
  if (!queue->cancelled) {
    const Step step = queue->tasks.front().step;
    lock.unlock();
    ready = step();
    lock.lock();
  }
  if (ready && !queue->cancelled) return deliver_first(lock, queue);
  std::erase(queues_, queue);
  if (!queue->cancelled) return queues_.push_back(queue);
  waiting_ -= queue->tasks.size();
  disposed_.push_back(queue);
}

void Preparer::deliver_first(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Queue>& queue) {
  const bool delivered = deliver_(queue->tasks.front().command);
  if (!delivered) changed_.wait_for(lock, kLaneRetry);
  std::erase(queues_, queue);
  if (delivered) {
    // What the task holds is the command's, too, which is the lane's now.
    disposed_.push_back(std::make_shared<Task>(std::move(queue->tasks.front())));
    queue->tasks.pop_front();
    --waiting_;
  }
  if (!queue->tasks.empty()) queues_.push_back(queue);
}

}  // namespace tensorlane::lane
