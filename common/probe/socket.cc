#include "common/probe/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace tensorlane::probe {
namespace {

bool set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<Address> Address::parse(const std::string& text, std::uint16_t port) {
  Address address;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    address.length = sizeof ipv4;
    return address;
  }
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6.sin6_addr) == 1) {
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    address.length = sizeof ipv6;
    return address;
  }
  return std::nullopt;
}

std::uint16_t Address::port() const {
  return ntohs(is_ipv6() ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                         : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string Address::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  if (is_ipv6()) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address))
      ::inet_ntop(AF_INET, address.s6_addr + 12, buffer, sizeof buffer);
    else
      ::inet_ntop(AF_INET6, &address, buffer, sizeof buffer);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, buffer, sizeof buffer);
  }
  return buffer;
}

void set_tag(int fd, bool ipv6, const Tag& tag) {
  const int traffic_class = tag.dscp << 2;
  set_option(fd, IPPROTO_IP, IP_TOS, traffic_class);
  if (ipv6) set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
  if (!set_option(fd, SOL_SOCKET, SO_PRIORITY, tag.pcp)) set_option(fd, SOL_SOCKET, SO_PRIORITY, 6);
}

Socket make_tagged(const Address& like, const Tag& tag) {
  Socket socket(::socket(like.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  set_tag(socket.fd(), like.is_ipv6(), tag);
  set_option(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

EffectiveTag read_tag(int fd, bool ipv6) {
  const int traffic_class = ipv6 ? get_option(fd, IPPROTO_IPV6, IPV6_TCLASS) : get_option(fd, IPPROTO_IP, IP_TOS);
  return {traffic_class < 0 ? -1 : traffic_class >> 2, get_option(fd, SOL_SOCKET, SO_PRIORITY)};
}

int bind_to(int fd, const Address& source) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, source.port() == 0);
  return ::bind(fd, source.get(), source.length) == 0 ? 0 : errno;
}

int set_hop_limit(int fd, bool ipv6, int hops) {
  const bool done =
      ipv6 ? set_option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, hops) : set_option(fd, IPPROTO_IP, IP_TTL, hops);
  return done ? 0 : errno;
}

void forget_on_close(int fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

std::uint16_t local_port(int fd) {
  Address address;
  address.length = sizeof address.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return 0;
  return address.port();
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tensorlane::probe
