// The client's end of the session socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/session.h"

namespace tensorlane::client {

// Monotonic.
Time now();

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// A packet from the daemon with the descriptors that came with it.
struct Message {
  protocol::MessageHeader header;
  std::vector<std::byte> body;
  std::array<UniqueFd, 2> fds;

  // The body as a T; Corrupt when it has another size.
  template <typename T>
  Result<T> as() const {
    if (body.size() != sizeof(T)) return wrong_size();
    T value;
    __builtin_memcpy(&value, body.data(), sizeof value);
    return value;
  }
  // What a kError says.
  Status error() const;

 private:
  Status wrong_size() const;
};

// send() from any thread; receive() from one at a time.
class Channel {
 public:
  // Errors: Unavailable (no daemon at `path`), PermissionDenied, TimedOut, InvalidArgument (path too long).
  Status connect(const std::string& path, Time deadline);
  // In place of connect(): this is the socket.
  void adopt(UniqueFd socket) { socket_ = std::move(socket); }
  // Ends the session: the daemon hears that this end is gone. Any thread.
  void hang_up() const;
  int fd() const { return socket_.get(); }

  // One packet. Errors: Unavailable (the daemon is gone), TimedOut (it does not read).
  Status send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body);
  // The next packet; nothing when none came until `deadline`. Errors: Unavailable (the daemon closed the session),
  // Corrupt, VersionMismatch.
  Result<std::optional<Message>> receive(Time deadline);

 private:
  Status check(const Message& message) const;

  std::string path_;
  UniqueFd socket_;
};

}  // namespace tensorlane::client
