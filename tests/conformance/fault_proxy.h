// A man in the middle of every TCP connection between two hosts: cuts, stalls, half-closes and changes bytes where a
// test says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::conformance {

// What happens to the bytes of one direction of a connection. Positions count from the connection's first byte.
struct Fault {
  enum class Kind { kNone, kReset, kClose, kHalfClose, kStall, kFlip, kForget };
  Kind kind = Kind::kNone;
  std::uint64_t at = 0;  // what comes before this byte passes
  // kReset, kClose: both directions end there. kHalfClose: this direction ends, the other goes on. kStall: this
  // direction says nothing more. kFlip: the lowest bit of this byte is changed, the rest passes. kForget: the target
  // gets a reset, the other end hears nothing, and a reset once it says something (needs CAP_NET_ADMIN).
};

// Listens on 127.0.0.1 at `listen_port` and forwards to `target_port` there. Driven by pump().
class FaultProxy {
 public:
  FaultProxy(std::uint16_t listen_port, std::uint16_t target_port);
  void pump();

  // For connections made from now on.
  Fault to_target, from_target;
  // What has passed on the last connection, for replays and to place faults.
  std::vector<std::byte> seen_to_target, seen_from_target;
  std::size_t connections = 0;

 private:
  struct Direction {
    Fault fault;
    std::uint64_t passed = 0;
    bool ended = false;
    std::vector<std::byte> waiting;
  };
  struct Link {
    handshake::Fd near, far;
    Direction to_target, from_target;
    bool dead = false;
  };
  void accept();
  void forward(Link& link, const handshake::Fd& from, const handshake::Fd& to, Direction& direction,
               std::vector<std::byte>& seen);
  void apply(Link& link, const handshake::Fd& to, Direction& direction);

  handshake::Fd listener_;
  const std::uint16_t target_port_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tensorlane::conformance
