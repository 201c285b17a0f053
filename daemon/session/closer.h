// Closing what a client may have put into the daemon's hands.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>

#include "daemon/session/unique_fd.h"

namespace tensorlane::session {

// Clients send no descriptors, but whoever reaches the socket can. One whose last close sleeps (a TCP socket that
// lingers, gigabytes of memory) then sleeps in whatever thread drops it, be it by reading its packet or by closing the
// socket that holds the packet. So the session thread does neither: it looks before it reads, and closes here.

// Connections to `listener` from now on may not be sent descriptors, where the kernel can refuse them (Linux 6.16 and
// later), and get no credentials, which brings_descriptors() would take for some.
void refuse_descriptors(int listener);

// Whether the next packet in `socket` brings descriptors. They stay there.
bool brings_descriptors(int socket);

// A thread that closes clients' sockets.
class Closer {
 public:
  // So many may wait before full(); each has a descriptor of the daemon.
  static constexpr std::size_t kMost = 64;

  Closer();
  // Closes what waits.
  ~Closer();

  // The peer learns at once that the connection is over. The socket is in no epoll set. Any thread; never sleeps.
  void close(UniqueFd socket);
  // Whether no more connections should be accepted until some are closed. Any thread.
  bool full() const { return waiting_.load(std::memory_order_relaxed) >= kMost; }
  bool idle() const { return waiting_.load(std::memory_order_relaxed) == 0; }
  // To be called every few milliseconds until idle(): ends the sleep of a close that sleeps, which a signal does for a
  // socket that lingers. Any thread.
  void hurry();

 private:
  void loop();

  std::atomic<std::size_t> waiting_{0};  // with the one that is being closed
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UniqueFd> sockets_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tensorlane::session
