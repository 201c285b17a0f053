#include "daemon/transport/handshake/linger.h"

#include <array>
#include <cerrno>
#include <cstddef>

namespace tensorlane::handshake {

bool Linger::drained() {
  std::array<std::byte, 16384> nobody_wants;
  // Bounded: a peer that does not stop to send is read again in the next poll.
  for (int turn = 0; turn < 16; ++turn) {
    const ssize_t received = ::recv(socket_.get(), nobody_wants.data(), nobody_wants.size(), MSG_DONTWAIT);
    if (received > 0) continue;
    return received == 0 || (errno != EAGAIN && errno != EINTR);
  }
  return false;
}

}  // namespace tensorlane::handshake
