#include "daemon/telemetry/connections.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tensorlane::telemetry {
namespace {

constexpr std::uint32_t kEstablished = 1u << 1;  // TCP_ESTABLISHED
constexpr timeval kPatience{1, 0};

Status unavailable(const char* what) {
  return {Code::kUnavailable, fmt::format("the kernel does not tell of TCP connections: {}: {}", what, strerror(errno)),
          "sock_diag", "load the module tcp_diag (modprobe tcp_diag)"};
}

std::string address_text(int family, const void* address, std::uint16_t port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family, address, text.data(), text.size());
  const std::string number = text.data();
  return fmt::format("{}:{}", family == AF_INET6 ? "[" + number + "]" : number, ntohs(port));
}

Status ask(int fd, std::uint8_t family) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_ext = 1u << (INET_DIAG_INFO - 1);
  request.body.idiag_states = kEstablished;
  if (send(fd, &request, sizeof request, 0) == static_cast<ssize_t>(sizeof request)) return {};
  return unavailable("send");
}

void read_info(const rtattr& attribute, TcpConnection& connection) {
  tcp_info info{};
  std::memcpy(&info, RTA_DATA(&attribute), std::min<std::size_t>(RTA_PAYLOAD(&attribute), sizeof info));
  connection.rtt = microseconds(info.tcpi_rtt);
  connection.min_rtt = microseconds(info.tcpi_min_rtt);
  connection.segments = info.tcpi_data_segs_out;
  connection.resent = info.tcpi_total_retrans;
  connection.acked_bytes = info.tcpi_bytes_acked;
  connection.busy = microseconds(static_cast<std::int64_t>(info.tcpi_busy_time));
  connection.peer_limited = microseconds(static_cast<std::int64_t>(info.tcpi_rwnd_limited));
}

TcpConnection read_connection(const nlmsghdr& header) {
  const auto& found = *static_cast<const inet_diag_msg*>(NLMSG_DATA(&header));
  TcpConnection connection;
  connection.local = address_text(found.idiag_family, found.id.idiag_src, found.id.idiag_sport);
  connection.remote = address_text(found.idiag_family, found.id.idiag_dst, found.id.idiag_dport);
  const auto* attribute = reinterpret_cast<const rtattr*>(&found + 1);
  auto left = static_cast<unsigned>(header.nlmsg_len - NLMSG_LENGTH(sizeof found));
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type == INET_DIAG_INFO) read_info(*attribute, connection);
  }
  return connection;
}

// The kernel's answers to one question. True when there are more.
Result<bool> take(int fd, std::size_t most, std::vector<TcpConnection>* connections) {
  alignas(nlmsghdr) std::array<char, 65536> packet;
  const ssize_t got = recv(fd, packet.data(), packet.size(), 0);
  if (got <= 0) return unavailable("recv");
  auto left = static_cast<unsigned>(got);
  for (auto* header = reinterpret_cast<const nlmsghdr*>(packet.data()); NLMSG_OK(header, left);
       header = NLMSG_NEXT(header, left)) {
    if (header->nlmsg_type == NLMSG_DONE) return false;
    if (header->nlmsg_type == NLMSG_ERROR) {
      errno = -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
      return unavailable("answer");
    }
    if (connections->size() >= most) return false;
    if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY) connections->push_back(read_connection(*header));
  }
  return true;
}

}  // namespace

Result<std::vector<TcpConnection>> read_tcp_connections(std::size_t most) {
  std::vector<TcpConnection> connections;
  for (const std::uint8_t family : {AF_INET, AF_INET6}) {
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0) return unavailable("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    Status asked = ask(fd, family);
    Result<bool> more = asked.ok() ? Result<bool>(true) : Result<bool>(asked);
    while (more.ok() && *more) more = take(fd, most, &connections);
    close(fd);
    if (!more.ok()) return more.status();
  }
  return connections;
}

}  // namespace tensorlane::telemetry
