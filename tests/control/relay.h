// A TCP relay of one port, for cutting a path in one direction while the connection stays up.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace tensorlane::control::testing {

class Relay {
 public:
  // Forwards what comes to port() of 127.0.0.1 to `address`:`port`, and back.
  Relay(std::string address, std::uint16_t port);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::uint16_t port() const { return own_port_; }
  // From now on bytes towards the target are read and thrown away; bytes back still pass.
  void cut() { cut_ = true; }

 private:
  struct Connection {
    int outer, inner;
  };
  void run();
  void accept_one();
  // False when the connection is over.
  bool move(int from, int to, bool forward);

  const std::string address_;
  const std::uint16_t port_;
  std::uint16_t own_port_ = 0;
  int listener_ = -1;
  std::vector<Connection> connections_;
  std::atomic<bool> cut_{false}, quit_{false};
  std::thread thread_;
};

}  // namespace tensorlane::control::testing
