// A peer made by hand: says whatever a test wants, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "harness.h"

namespace tensorlane::conformance {

// A connection to, or from, a host under test. Calls poll that host while they wait.
class RawPeer {
 public:
  // Connects to a listener of `host`.
  RawPeer(TestClock& clock, Host& host, ClassId cls);
  // Takes over an accepted socket.
  RawPeer(TestClock& clock, Host& host, handshake::Fd socket)
      : clock_(clock), host_(host), socket_(std::move(socket)) {}

  void send(std::span<const std::byte> bytes);
  template <typename Message>
  void send_message(const Message& message) {
    send(handshake::bytes_of(message));
  }
  // Exactly `bytes`, or what came until the connection ended or 2 s passed.
  std::vector<std::byte> receive(std::size_t bytes);
  template <typename Message>
  Message receive_message() {
    Message message;
    const auto bytes = receive(sizeof message);
    EXPECT_EQ(bytes.size(), sizeof message);
    if (bytes.size() == sizeof message) std::memcpy(&message, bytes.data(), sizeof message);
    return message;
  }
  // True once the host has closed its end.
  bool closed();
  void half_close();
  void reset();
  // The whole handshake as a good host 0 would do it.
  void authenticate(ClassId cls);
  int fd() const { return socket_.get(); }

 private:
  void poll() { host_->poll(clock_.now()); }
  TestClock& clock_;
  Host& host_;
  handshake::Fd socket_;
};

// A good hello of host 0 to host 1.
handshake::Hello good_hello(ClassId cls);
// The other messages of a handshake that has begun with `hello`, as a good host says them. `nonce` is the challenge's.
handshake::Challenge good_challenge(const handshake::Hello& hello);
handshake::Proof good_proof(const handshake::Hello& hello, const handshake::Nonce& nonce,
                            handshake::Parameters client = {});
handshake::Verdict good_verdict(const handshake::Hello& hello, const handshake::Nonce& nonce,
                                handshake::Parameters client, handshake::Parameters server);
handshake::Ready good_ready(const handshake::Hello& hello, const handshake::Nonce& nonce, handshake::Parameters client,
                            handshake::Parameters server);
// What a refusal's message says once its MAC has been put right.
template <typename Message>
Message refusing(handshake::Refusal refusal, const std::string& text = {}) {
  Message message;
  message.head.refusal = refusal;
  if constexpr (requires { message.text; }) message.text = handshake::pack_text(text);
  return message;
}
// A listener by hand, for what a connecting host meets; accept() polls the host until it comes.
class RawListener {
 public:
  explicit RawListener(std::uint16_t port, const std::string& address = "127.0.0.1");
  RawPeer accept(TestClock& clock, Host& host);

 private:
  handshake::Fd socket_;
};

}  // namespace tensorlane::conformance
