#include "daemon/control/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "common/base/assert.h"

namespace tensorlane::control {

Inbox::Inbox() : wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  TL_ASSERT(wake_fd_ >= 0);
}

Inbox::~Inbox() {
  close(wake_fd_);
}

void Inbox::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);  // full means that it is readable already
}

bool Inbox::request(std::function<void()> what) {
  {
    std::lock_guard lock(mutex_);
    if (items_.size() >= kMaxRequests) return false;
    items_.push_back(std::move(what));
  }
  wake();
  return true;
}

void Inbox::event(std::function<void()> what) {
  {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(what));
  }
  wake();
}

bool Inbox::take(std::function<void()>* item) {
  std::lock_guard lock(mutex_);
  if (items_.empty()) return false;
  *item = std::move(items_.front());
  items_.pop_front();
  return true;
}

void Inbox::run(Duration slice) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got =
      read(wake_fd_, &count, sizeof count);  // before taking: what comes later wakes again
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(slice.value);
  for (std::function<void()> item; take(&item);) {
    item();
    item = nullptr;  // what it holds goes before the next one runs
    if (std::chrono::steady_clock::now() < end) continue;
    wake();
    return;
  }
}

}  // namespace tensorlane::control
