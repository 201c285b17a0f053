// Sockets of the probe: owned descriptors, addresses, and the tags, set in the order in which the TCP transport sets
// them. Errors are errno values: this module depends on nothing else of ours, so that the program that uses it can be
// sent to a host on which nothing is installed.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tensorlane::probe {

// An owned file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A numeric IPv4 or IPv6 address with a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  static std::optional<Address> parse(const std::string& text, std::uint16_t port);
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::uint16_t port() const;
  // Without the port.
  std::string text() const;
};

// How packets are marked.
struct Tag {
  std::uint8_t dscp = 0;  // 0..63
  std::uint8_t pcp = 0;   // 0..7: the socket's priority, at most 6
};

// A TCP socket that does not block, with its tag: IP_TOS and IPV6_TCLASS first, SO_PRIORITY last. Invalid, with errno,
// when it cannot be made.
Socket make_tagged(const Address& like, const Tag& tag);
void set_tag(int fd, bool ipv6, const Tag& tag);
// What the kernel says of the socket; -1 where it says nothing.
struct EffectiveTag {
  int dscp = -1, priority = -1;
};
EffectiveTag read_tag(int fd, bool ipv6);

// Binds the socket to `source`; with port 0 the kernel chooses one that is free with the destination. 0, or errno.
int bind_to(int fd, const Address& source);
// Limits how many hops its packets go. 0, or errno.
int set_hop_limit(int fd, bool ipv6, int hops);
// Lets close() send a reset, so that the same ports can be used again at once.
void forget_on_close(int fd);
// Of its own end; 0 where there is none.
std::uint16_t local_port(int fd);

// Milliseconds of the monotonic clock.
std::int64_t now_ms();

}  // namespace tensorlane::probe
