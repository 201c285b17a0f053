// The library's own threads.
#include <poll.h>

#include <algorithm>

#include "client-lib/src/context.h"
#include "client-lib/src/error.h"

namespace tensorlane::client {

void Context::helper() {
  const Duration period = std::clamp(Duration(detection_.value / 8), milliseconds(5), milliseconds(100));
  bool connected = true;
  while (true) {
    pollfd fds[2] = {{stop_fd_.get(), POLLIN, 0}, {connected ? channel_.fd() : -1, POLLIN, 0}};
    poll(fds, 2, static_cast<int>(period.value / 1'000'000));
    if (fds[0].revents != 0) return;
    rings_.beat();
    while (connected) {
      Result<std::optional<Message>> message = channel_.receive(Time(0));
      if (message.ok() && !message->has_value()) break;
      if (message.ok()) {
        on_message(std::move(**message));
        continue;
      }
      connected = false;
      fail(rings_.failed() ? rings_.error() : message.status(), true);
    }
    if (connected && alone_ == nullptr) watch_daemon(now());
    free_streams_of_stuck_gpus(now());
    std::lock_guard lock(mutex_);
    if (give_up_.value != 0 && now() > give_up_ && outstanding_ > 0) {
      fail_locked(Status(Code::kAborted, "the job was aborted", "the daemon gave no reason",
                         "look at its log and resume from a checkpoint"),
                  true);
    }
  }
}

// A daemon that is stopped keeps its socket open; only that its session thread no longer counts gives it away.
void Context::watch_daemon(Time time) {
  const std::uint64_t beats = rings_.daemon_beats();
  if (beats != daemon_beats_) {
    daemon_beats_ = beats;
    daemon_silent_ = Duration(0);
  } else {
    // Our own pauses do not count against the daemon.
    daemon_silent_ += std::min(time - last_watch_, Duration(std::max<std::int64_t>(detection_.value / 4, 200'000'000)));
  }
  last_watch_ = time;
  if (daemon_silent_ <= detection_) return;
  const std::int64_t tenths = daemon_silent_.value / 100'000'000;
  fail(Status(Code::kTimedOut,
              "the daemon has not been heard for " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
                  " s",
              settings_.socket, "check whether tensorlaned is stopped"),
       true);
}

void Context::start_dispatcher_locked() {
  if (!dispatcher_.joinable()) dispatcher_ = std::thread([this] { dispatcher(); });
}

void Context::dispatcher() {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::uint32_t seen = rings_.completed();
    drain_locked();
    advance_queues(lock);
    if (!callbacks_.empty()) {
      tl_request* request = callbacks_.front();
      callbacks_.pop_front();
      if (request->state == tl_request::State::kCopying) {  // by another thread, for no longer than that takes
        callbacks_.push_back(request);
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
        continue;
      }
      request->state = tl_request::State::kTaken;
      const bool of_gpu = request->tensor->gpu != nullptr;
      const tl_callback_t function = request->callback;
      void* argument = request->argument;
      lock.unlock();
      const Status status = consume(*request);
      function(report(status), argument);
      lock.lock();
      --callbacks_waited_;
      if (of_gpu) --gpu_callbacks_;
      continue;
    }
    if (stopping_) return;
    if (callbacks_waited_ == 0 && queues_.empty()) {
      callbacks_changed_.wait(lock);
      continue;
    }
    // What a GPU has come to the end of is not seen in the rings.
    const Duration longest = gpu_callbacks_ > 0 ? milliseconds(1) : milliseconds(100);
    lock.unlock();
    rest(seen, longest);
    lock.lock();
  }
}

}  // namespace tensorlane::client
