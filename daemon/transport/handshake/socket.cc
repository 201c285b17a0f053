#include "daemon/transport/handshake/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace tensorlane::handshake {
namespace {

Endpoint endpoint_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  Endpoint endpoint;
  endpoint.length = sizeof endpoint.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.length) != 0) endpoint.length = 0;
  return endpoint;
}

const sockaddr_in& as_ipv4(const Endpoint& e) {
  return reinterpret_cast<const sockaddr_in&>(e.storage);
}
const sockaddr_in6& as_ipv6(const Endpoint& e) {
  return reinterpret_cast<const sockaddr_in6&>(e.storage);
}

// In front of the endpoint that a Unix socket stands for, in the name of its file.
constexpr std::string_view kUnixPrefix = "flow-";

std::string unix_text(const Endpoint& endpoint) {
  const std::string path = unix_path(endpoint);
  const std::size_t name = path.rfind(kUnixPrefix);
  return name == std::string::npos ? "this machine" : path.substr(name + kUnixPrefix.size());
}

bool set_int(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

int in_milliseconds(Duration duration) {
  return static_cast<int>(std::min<std::int64_t>(duration.value / 1'000'000, 3'600'000));
}

// Keepalive counts in seconds.
void ask_when_idle(int fd, Duration within) {
  const int between = std::max(1, in_milliseconds(within) / 4000);
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, between);
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, between);
}

int get_int(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, option, &value, &length) == 0 ? value : -1;
}

// net.core.wmem_max, or 0 when it cannot be read.
std::uint64_t largest_send_buffer() {
  static const std::uint64_t limit = [] {
    std::uint64_t value = 0;
    std::ifstream("/proc/sys/net/core/wmem_max") >> value;
    return value;
  }();
  return limit;
}

}  // namespace

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

bool Endpoint::wildcard() const {
  if (family() == AF_UNIX) return false;
  if (family() == AF_INET) return as_ipv4(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&as_ipv6(*this).sin6_addr);
}

std::string Endpoint::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  if (length == 0) return "unknown address";
  if (family() == AF_UNIX) return unix_text(*this);
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &as_ipv4(*this).sin_addr, buffer, sizeof buffer);
    return fmt::format("{}:{}", buffer, ntohs(as_ipv4(*this).sin_port));
  }
  const auto& ipv6 = as_ipv6(*this);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    ::inet_ntop(AF_INET, ipv6.sin6_addr.s6_addr + 12, buffer, sizeof buffer);
    return fmt::format("{}:{}", buffer, ntohs(ipv6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &ipv6.sin6_addr, buffer, sizeof buffer);
  return fmt::format("[{}]:{}", buffer, ntohs(ipv6.sin6_port));
}

Result<Endpoint> parse_endpoint(const std::string& address, std::uint16_t port) {
  Endpoint endpoint;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(endpoint.storage);
  if (::inet_pton(AF_INET, address.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    endpoint.length = sizeof ipv4;
    return endpoint;
  }
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(endpoint.storage);
  if (::inet_pton(AF_INET6, address.c_str(), &ipv6.sin6_addr) == 1) {
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    endpoint.length = sizeof ipv6;
    return endpoint;
  }
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not a numeric IPv4 or IPv6 address", address), "transport",
                "write an address such as 10.1.0.2 or fd00::2 under `addresses` in fabric.yaml");
}

Result<Endpoint> unix_endpoint(const std::string& folder, const Endpoint& endpoint) {
  Endpoint named;
  auto& name = reinterpret_cast<sockaddr_un&>(named.storage);
  const std::string path = fmt::format("{}/{}{}", folder, kUnixPrefix, endpoint.text());
  if (path.size() >= sizeof name.sun_path) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the path has {} bytes, {} are possible", path.size(), sizeof name.sun_path - 1), path,
                  "set socket to a path in a folder with a shorter name");
  }
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  named.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return named;
}

std::string unix_path(const Endpoint& endpoint) {
  const auto& name = reinterpret_cast<const sockaddr_un&>(endpoint.storage);
  constexpr std::size_t kFront = offsetof(sockaddr_un, sun_path);
  if (endpoint.family() != AF_UNIX || endpoint.length <= kFront) return {};
  return {name.sun_path, strnlen(name.sun_path, endpoint.length - kFront)};
}

Status check_own_folder(const std::string& folder) {
  struct stat info {};
  const char* wrong = nullptr;
  if (::stat(folder.c_str(), &info) != 0) {
    wrong = "it cannot be read";
  } else if (!S_ISDIR(info.st_mode)) {
    wrong = "it is no folder";
  } else if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    wrong = "it belongs to another user";
  } else if ((info.st_mode & 022) != 0) {
    wrong = "others can write into it";
  } else if (::access(folder.c_str(), W_OK) != 0) {
    wrong = "this daemon's user cannot write into it";
  }
  if (wrong == nullptr) return {};
  return {Code::kPermissionDenied, fmt::format("sockets in the folder could be anybody's: {}", wrong), folder,
          "set socket to a path in a folder of the daemon's user that nobody else can write into"};
}

std::string interface_of(const std::string& address) {
  const Result<Endpoint> wanted = parse_endpoint(address, 0);
  ifaddrs* all = nullptr;
  if (!wanted.ok() || ::getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* i = all; i != nullptr && name.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != wanted->family()) continue;
    Endpoint endpoint;
    endpoint.length = wanted->length;
    std::memcpy(&endpoint.storage, i->ifa_addr, endpoint.length);
    if (endpoint.text() == wanted->text()) name = i->ifa_name;
  }
  ::freeifaddrs(all);
  return name;
}

Endpoint local_endpoint(int fd) {
  return endpoint_of(fd, ::getsockname);
}
Endpoint peer_endpoint(int fd) {
  return endpoint_of(fd, ::getpeername);
}

std::string class_name(ClassId cls) {
  return cls == kControlClass ? "control" : fmt::format("{}", cls.value);
}

std::string connection_name(HostIndex peer, const std::string& endpoint, ClassId cls) {
  return fmt::format("connection to host {} ({}, class {})", peer.value, endpoint, class_name(cls));
}

Result<int> apply_tag(int fd, const ports::ClassTag& tag) {
  const int traffic_class = tag.dscp << 2, domain = get_int(fd, SOL_SOCKET, SO_DOMAIN);
  if (domain == AF_UNIX) return static_cast<int>(tag.pcp);
  const bool ipv6 = domain == AF_INET6;
  // An IPv6 socket may carry IPv4 (mapped addresses), so it gets both.
  const bool marked = set_int(fd, IPPROTO_IP, IP_TOS, traffic_class) &&
                      (!ipv6 || set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, traffic_class));
  if (!marked) {
    return Status(Code::kInternal, fmt::format("cannot set DSCP {} on a socket: {}", tag.dscp, errno_text(errno)),
                  "class " + class_name(tag.cls));
  }
  for (const int priority : {static_cast<int>(tag.pcp), 6}) {
    if (set_int(fd, SOL_SOCKET, SO_PRIORITY, priority)) return priority;
    if (errno != EPERM) break;
  }
  return Status(Code::kInternal, fmt::format("cannot set priority {} on a socket: {}", tag.pcp, errno_text(errno)),
                "class " + class_name(tag.cls));
}

EffectiveTag read_tag(int fd) {
  const Endpoint peer = peer_endpoint(fd);
  const bool ipv6 = peer.family() == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&as_ipv6(peer).sin6_addr);
  const int traffic_class = ipv6 ? get_int(fd, IPPROTO_IPV6, IPV6_TCLASS) : get_int(fd, IPPROTO_IP, IP_TOS);
  return {traffic_class < 0 ? -1 : traffic_class >> 2, get_int(fd, SOL_SOCKET, SO_PRIORITY)};
}

void tune(int fd, Bytes window) {
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // The kernel doubles the number it is given and then counts its own overhead against it.
  const std::uint64_t wanted = window.value * 3 / 4;
  const int value = static_cast<int>(std::min<std::uint64_t>(wanted, 1u << 30));
  if (set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, value)) return;
  if (wanted <= largest_send_buffer()) set_int(fd, SOL_SOCKET, SO_SNDBUF, value);
}

void expect_life(int fd, Duration detection) {
  ask_when_idle(fd, detection);
  const int milliseconds = in_milliseconds(detection);
  set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds + milliseconds / 2);
}

void notice_loss(int fd, Duration within) {
  ask_when_idle(fd, within);
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 127);  // the most that Linux takes
}

void expect_starvation(int fd) {
  constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which older headers do not know
  constexpr int kDayMs = 24 * 3'600'000, kTryAgainMs = 1000;
  set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kDayMs);
  set_int(fd, IPPROTO_TCP, kTcpRtoMaxMs, kTryAgainMs);
}

Unacknowledged read_unacknowledged(int fd) {
  int bytes = 0;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::ioctl(fd, SIOCOUTQ, &bytes) != 0 || ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {static_cast<std::uint64_t>(std::max(bytes, 0)), info.tcpi_total_retrans, info.tcpi_pmtu};
}

std::string errno_text(int error) {
  // Not by std::error_category: where no descriptor is left, the address sanitizer cannot check a call of its virtual
  // functions.
  const char* text = ::strerrordesc_np(error);
  return text != nullptr ? text : "error " + std::to_string(error);
}

}  // namespace tensorlane::handshake
