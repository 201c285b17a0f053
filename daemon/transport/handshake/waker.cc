#include "daemon/transport/handshake/waker.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace tensorlane::handshake {

Status Waker::open(int epoll, void* data) {
  event_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  for (const Fd* fd : {&event_, &timer_}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = data;
    if (!fd->valid() || ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd->get(), &event) != 0) {
      return {Code::kResourceExhausted, "cannot make a wake descriptor: " + errno_text(errno), "transport",
              "raise the limit of open files"};
    }
  }
  return {};
}

void Waker::kick() {
  if (kicked_) return;
  kicked_ = true;
  const std::uint64_t one = 1;
  // Cannot fail: the counter is at most 1.
  [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof one);
}

void Waker::wake_at(Time now, Time due) {
  if (due_ && *due_ <= due) return;
  due_ = due;
  const std::int64_t wait = std::max<std::int64_t>((due - now).value, 1);
  itimerspec spec{};
  spec.it_value.tv_sec = wait / 1'000'000'000;
  spec.it_value.tv_nsec = wait % 1'000'000'000;
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Waker::clear_kick() {
  if (!kicked_) return;
  kicked_ = false;
  std::uint64_t count = 0;
  [[maybe_unused]] const auto n = ::read(event_.get(), &count, sizeof count);
}

void Waker::clear_timer() {
  std::uint64_t count = 0;
  if (due_ && ::read(timer_.get(), &count, sizeof count) == sizeof count) due_.reset();
}

}  // namespace tensorlane::handshake
