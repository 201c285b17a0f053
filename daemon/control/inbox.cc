#include "daemon/control/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

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

void Inbox::run_all() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got =
      read(wake_fd_, &count, sizeof count);  // before taking: what comes later wakes again
  std::deque<std::function<void()>> items;
  {
    std::lock_guard lock(mutex_);
    items.swap(items_);
  }
  for (auto& item : items) item();
}

}  // namespace tensorlane::control
