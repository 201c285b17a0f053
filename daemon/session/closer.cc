#include "daemon/session/closer.h"

#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstddef>

namespace tensorlane::session {
namespace {

constexpr int kPassRights = 83;  // SO_PASSRIGHTS of asm-generic/socket.h, which may be older than the kernel
// Directed to the closer's thread alone, where it only has to arrive; everywhere else it is ignored, as by default.
constexpr int kHurry = SIGURG;
constexpr std::chrono::milliseconds kPatience{10};

}  // namespace

void refuse_descriptors(int listener) {
  const int off = 0;
  for (const int option : {SO_PASSCRED, SO_PASSSEC, kPassRights}) {
    (void)setsockopt(listener, SOL_SOCKET, option, &off, sizeof off);
  }
}

bool brings_descriptors(int socket) {
  msghdr message{};
  // A look leaves a reference with the packet, so what the kernel drops here is never the last one.
  return recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
}

Closer::Closer() {
  struct sigaction arrive {};
  arrive.sa_handler = [](int) {};
  arrive.sa_flags = SA_RESTART;
  sigaction(kHurry, &arrive, nullptr);
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "tl-closer");
}

Closer::~Closer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  for (; !idle(); std::this_thread::sleep_for(kPatience)) hurry();
  thread_.join();
}

void Closer::close(UniqueFd socket) {
  shutdown(socket.get(), SHUT_RDWR);
  waiting_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    sockets_.push_back(std::move(socket));
  }
  changed_.notify_one();
}

void Closer::hurry() {
  if (!idle()) pthread_kill(thread_.native_handle(), kHurry);
}

void Closer::loop() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, kHurry);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !sockets_.empty(); });
    if (sockets_.empty()) return;
    UniqueFd socket = std::move(sockets_.front());
    sockets_.pop_front();
    lock.unlock();
    // What is not read would tell the client that the connection was reset, rather than why it was closed.
    for (std::byte ignored; recv(socket.get(), &ignored, sizeof ignored, MSG_DONTWAIT) > 0;) continue;
    socket.reset();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    lock.lock();
  }
}

}  // namespace tensorlane::session
