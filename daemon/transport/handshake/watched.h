// What epoll's event data points to.
#pragma once

#include <cstdint>

namespace tensorlane::handshake {

// Everything with a descriptor in the transport's epoll set. An object that goes while events for it may still be in
// hand is marked `gone` and freed when the poll ends.
struct Watched {
  enum class Kind : std::uint8_t { kWaker, kListener, kConnection, kFlow, kLinger, kDevice };

  explicit Watched(Kind k) : kind(k) {}
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  const Kind kind;
  bool gone = false;
};

}  // namespace tensorlane::handshake
