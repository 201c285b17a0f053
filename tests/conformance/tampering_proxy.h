// Somebody on the path of a TCP connection who changes, repeats, leaves out, puts in, moves or cuts off bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::conformance {

// What is done to the bytes of one direction from position `at` on, which counts from the connection's first byte. What
// needs `bytes` more of them waits until they have come.
struct Tampering {
  enum class Kind : std::uint8_t {
    kNone,
    kFlip,    // a bit of the byte
    kDrop,    // these bytes are left out
    kRepeat,  // these bytes come twice
    kSwap,    // these bytes and as many behind them change places
    kInsert,  // bytes that the proxy makes up
    kEnd,     // this direction ends there
    kReset,   // both do
  };
  Kind kind = Kind::kNone;
  bool to_target = true;
  std::uint64_t at = 0;
  std::size_t bytes = 1;
  unsigned bit = 0;  // of kFlip
};

// Listens on 127.0.0.1 at `listen_port` and forwards one connection at a time to `target_port` there. Driven by pump().
class TamperingProxy {
 public:
  TamperingProxy(std::uint16_t listen_port, std::uint16_t target_port);
  void pump();

  // Of the connection that there is, whose bytes up to there have not come yet.
  void tamper(const Tampering& tampering) { plan_ = tampering; }
  // At a place behind the handshake, among so many bytes of either direction: records and their parts among them.
  void tamper_at_random(std::uint64_t seed, std::uint64_t client_handshake, std::uint64_t server_handshake,
                        std::uint64_t among);
  // Now, into the connection that there is.
  void insert(bool to_target, std::span<const std::byte> bytes);

  // What came from either end of the connection, before anything was done to it.
  const std::vector<std::byte>& seen(bool to_target) const { return directions_[to_target].seen; }
  // How often something has been done.
  std::size_t done() const { return done_; }
  // The receiver waits for bytes that never come: something was left out and nothing follows it.
  bool stalled() const;

 private:
  struct Direction {
    std::vector<std::byte> seen;
    std::vector<std::byte> waiting;  // to be sent on
    std::uint64_t passed = 0;        // of `seen`, handed to `waiting`
    bool from_ended = false, ended = false;
  };
  bool accept();
  void receive(bool to_target);
  void apply(bool to_target);
  void forward(bool to_target);
  void reset();

  handshake::Fd listener_, near_, far_;
  const std::uint16_t target_port_;
  std::array<Direction, 2> directions_;  // [1]: to the target
  Tampering plan_;
  std::size_t done_ = 0;
  std::size_t quiet_ = 0;  // turns in which nothing has come
};

}  // namespace tensorlane::conformance
