// A socket that has said its last word and waits for the peer to hear it.
#pragma once

#include <sys/socket.h>

#include "common/base/units.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"

namespace tensorlane::handshake {

inline constexpr Duration kLingerTimeout = seconds(2);
// Sockets that may linger; one more is closed at once.
inline constexpr std::size_t kMaxLingering = 512;

// close() on a socket with unread bytes sends a reset, which destroys what the peer has not read yet: the reason of a
// refusal, or the last frames of a job that ends. So the sending direction is shut down first, and what still comes is
// read away until the peer closes too or the time is up.
class Linger final : public Watched {
 public:
  Linger(Fd socket, Time deadline) : Watched(Kind::kLinger), socket_(std::move(socket)), deadline_(deadline) {
    ::shutdown(socket_.get(), SHUT_WR);
  }
  int fd() const { return socket_.get(); }
  Time deadline() const { return deadline_; }
  // True once the socket can be closed.
  bool drained();

 private:
  Fd socket_;
  const Time deadline_;
};

}  // namespace tensorlane::handshake
