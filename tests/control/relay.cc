#include "relay.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace tensorlane::control::testing {
namespace {

sockaddr_in address_of(const std::string& address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

}  // namespace

Relay::Relay(std::string address, std::uint16_t port) : address_(std::move(address)), port_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own = address_of("127.0.0.1", 0);
  socklen_t length = sizeof own;
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&own), length), 0);
  EXPECT_EQ(listen(listener_, 16), 0);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length), 0);
  own_port_ = ntohs(own.sin_port);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  quit_ = true;
  thread_.join();
  for (const Connection& c : connections_) {
    close(c.outer);
    close(c.inner);
  }
  close(listener_);
}

void Relay::accept_one() {
  const int outer = accept(listener_, nullptr, nullptr);
  const int inner = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in target = address_of(address_, port_);
  if (connect(inner, reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
    close(outer);
    close(inner);
    return;
  }
  connections_.push_back({outer, inner});
}

bool Relay::move(int from, int to, bool forward) {
  std::array<char, 65536> bytes;
  const ssize_t got = read(from, bytes.data(), bytes.size());
  if (got <= 0) return false;
  if (forward && cut_) return true;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t n = ::send(to, bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += n;
  }
  return true;
}

void Relay::run() {
  while (!quit_) {
    std::vector<pollfd> fds{{listener_, POLLIN, 0}};
    for (const Connection& c : connections_) {
      fds.push_back({c.outer, POLLIN, 0});
      fds.push_back({c.inner, POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), 20) <= 0) continue;
    for (std::size_t i = connections_.size(); i-- > 0;) {
      const Connection c = connections_[i];
      const bool alive = (fds[1 + 2 * i].revents == 0 || move(c.outer, c.inner, true)) &&
                         (fds[2 + 2 * i].revents == 0 || move(c.inner, c.outer, false));
      if (alive) continue;
      close(c.outer);
      close(c.inner);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (fds[0].revents != 0) accept_one();
  }
}

}  // namespace tensorlane::control::testing
