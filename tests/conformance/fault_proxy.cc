#include "fault_proxy.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace tensorlane::conformance {
namespace {

handshake::Endpoint loopback(std::uint16_t port) {
  return *handshake::parse_endpoint("127.0.0.1", port);
}

void make_reset(const handshake::Fd& fd) {
  const linger off{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
}

bool unacknowledged(const handshake::Fd& fd) {
  int bytes = 0;
  return ::ioctl(fd.get(), SIOCOUTQ, &bytes) != 0 || bytes > 0;
}

// A socket that the kernel thinks to be moved to another machine closes without a word.
void make_silent(const handshake::Fd& fd) {
  const int on = 1;
  if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0)
    throw std::runtime_error("a connection is forgotten with CAP_NET_ADMIN only");
}

}  // namespace

FaultProxy::FaultProxy(std::uint16_t listen_port, std::uint16_t target_port) : target_port_(target_port) {
  listener_ = handshake::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto endpoint = loopback(listen_port);
  if (::bind(listener_.get(), endpoint.get(), endpoint.length) != 0 || ::listen(listener_.get(), 64) != 0)
    throw std::runtime_error("proxy port in use");
}

void FaultProxy::accept() {
  handshake::Fd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
  if (!near.valid()) return;
  auto link = std::make_unique<Link>();
  link->far = handshake::Fd(::socket(AF_INET, SOCK_STREAM, 0));
  const auto target = loopback(target_port_);
  if (::connect(link->far.get(), target.get(), target.length) != 0) return;
  link->near = std::move(near);
  link->to_target.fault = to_target;
  link->from_target.fault = from_target;
  seen_to_target.clear();
  seen_from_target.clear();
  links_.push_back(std::move(link));
  ++connections;
}

void FaultProxy::pump() {
  accept();
  for (auto& link : links_) {
    if (!link->dead) forward(*link, link->near, link->far, link->to_target, seen_to_target);
    if (!link->dead) forward(*link, link->far, link->near, link->from_target, seen_from_target);
    if (link->to_target.ended && link->from_target.ended) link->dead = true;
  }
  std::erase_if(links_, [](const auto& link) { return link->dead; });
}

void FaultProxy::forward(Link& link, const handshake::Fd& from, const handshake::Fd& to, Direction& direction,
                         std::vector<std::byte>& seen) {
  std::array<std::byte, 65536> buffer;
  if (direction.waiting.empty()) {
    const ssize_t received = ::recv(from.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received < 0 && errno == EAGAIN) return apply(link, to, direction);
    if (received < 0) {
      make_reset(to);
      link.dead = true;
      return;
    }
    if (received == 0) {
      if (!direction.ended) ::shutdown(to.get(), SHUT_WR);
      direction.ended = true;
      return;
    }
    direction.waiting.assign(buffer.begin(), buffer.begin() + received);
    if (direction.fault.kind == Fault::Kind::kFlip && direction.fault.at >= direction.passed &&
        direction.fault.at < direction.passed + direction.waiting.size()) {
      direction.waiting[direction.fault.at - direction.passed] ^= std::byte{1};
    }
  }
  std::size_t allowed = direction.waiting.size();
  const Fault::Kind kind = direction.fault.kind;
  if (kind != Fault::Kind::kNone && kind != Fault::Kind::kFlip) {
    allowed = std::min<std::uint64_t>(allowed, direction.fault.at - std::min(direction.fault.at, direction.passed));
  }
  if (allowed > 0) {
    const ssize_t sent = ::send(to.get(), direction.waiting.data(), allowed, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      seen.insert(seen.end(), direction.waiting.begin(), direction.waiting.begin() + sent);
      direction.waiting.erase(direction.waiting.begin(), direction.waiting.begin() + sent);
      direction.passed += static_cast<std::uint64_t>(sent);
    }
  }
  apply(link, to, direction);
}

void FaultProxy::apply(Link& link, const handshake::Fd& to, Direction& direction) {
  if (direction.passed < direction.fault.at) return;
  switch (direction.fault.kind) {
    case Fault::Kind::kNone:
    case Fault::Kind::kFlip:
    case Fault::Kind::kStall:
      return;
    case Fault::Kind::kReset:
      make_reset(link.near);
      make_reset(link.far);
      link.dead = true;
      return;
    case Fault::Kind::kForget:
      if (unacknowledged(link.near)) return;  // whoever acknowledges says something
      make_reset(link.far);
      make_silent(link.near);
      link.dead = true;
      return;
    case Fault::Kind::kClose:
      ::shutdown(link.near.get(), SHUT_WR);
      ::shutdown(link.far.get(), SHUT_WR);
      link.dead = true;
      return;
    case Fault::Kind::kHalfClose:
      ::shutdown(to.get(), SHUT_WR);
      direction.waiting.clear();
      direction.fault = {};
      direction.ended = true;
      return;
  }
}

}  // namespace tensorlane::conformance
