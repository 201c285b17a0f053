#include "network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "common/base/assert.h"

namespace tensorlane::dpdk::testing {
namespace {

// The kernel leaves UDP checksums to the NIC, and a cable of the kernel's has none.
void fill_in_checksums(const char* interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ethtool_value off{.cmd = ETHTOOL_STXCSUM, .data = 0};
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&off);
  TL_ASSERT(ioctl(fd, SIOCETHTOOL, &request) == 0);
  close(fd);
}

// As make_network().
std::string make_namespace() {
  if (geteuid() != 0) return "needs root";
  if (unshare(CLONE_NEWNET) != 0) return std::string("cannot make a network namespace: ") + std::strerror(errno);
  return "";
}

sockaddr_storage address_of(const std::string& text, bool v6, std::uint16_t port, socklen_t* length) {
  sockaddr_storage storage{};
  if (v6) {
    auto* const address = reinterpret_cast<sockaddr_in6*>(&storage);
    address->sin6_family = AF_INET6;
    address->sin6_port = htons(port);
    TL_ASSERT(text.empty() || inet_pton(AF_INET6, text.c_str(), &address->sin6_addr) == 1);
    *length = sizeof *address;
  } else {
    auto* const address = reinterpret_cast<sockaddr_in*>(&storage);
    address->sin_family = AF_INET;
    address->sin_port = htons(port);
    TL_ASSERT(text.empty() || inet_pton(AF_INET, text.c_str(), &address->sin_addr) == 1);
    *length = sizeof *address;
  }
  return storage;
}

void wait_at_most(int fd, int milliseconds) {
  const timeval time{.tv_sec = 0, .tv_usec = milliseconds * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

}  // namespace

bool run(const std::string& command) {
  return std::system(command.c_str()) == 0;  // NOLINT(concurrency-mt-unsafe): tests have one thread
}

std::string make_network() {
  static const std::string reason = []() -> std::string {
    if (const std::string missing = make_namespace(); !missing.empty()) return missing;
    const bool made = run("ip link set lo up && ip link add tla type veth peer name tlb") &&
                      run("ip link set tla addrgenmode none && ip link set tlb addrgenmode none") &&
                      run("ip link set tla up && ip link set tlb up");
    if (!made) return "cannot make a veth pair";
    fill_in_checksums("tla");
    fill_in_checksums("tlb");
    return "";
  }();
  return reason;
}

std::string make_bridge(int ends) {
  static const std::string reason = [ends]() -> std::string {
    if (const std::string missing = make_namespace(); !missing.empty()) return missing;
    if (!run("ip link set lo up && ip link add tlbridge type bridge mcast_snooping 0 && ip link set tlbridge up"))
      return "cannot make a bridge";
    for (int end = 1; end <= ends; ++end) {
      const std::string here = "tlend" + std::to_string(end), there = "tlport" + std::to_string(end);
      const bool made = run("ip link add " + here + " type veth peer name " + there) &&
                        run("ip link set " + there + " master tlbridge") &&
                        run("ip link set " + here + " addrgenmode none && ip link set " + there +
                            " addrgenmode none && ip link set " + here + " up && ip link set " + there + " up");
      if (!made) return "cannot make a veth pair";
    }
    return "";
  }();
  return reason;
}

KernelHost::KernelHost(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses)
    TL_ASSERT(run("ip address add " + address + " dev tlb" + (address.find(':') == std::string::npos ? "" : " nodad")));
}

KernelHost::~KernelHost() {
  run("ip address flush dev tlb");
  run("ip neighbour flush dev tlb");
}

Capture::Capture(const std::string& interface) : socket_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL))) {
  TL_ASSERT(socket_ >= 0);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  TL_ASSERT(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const int on = 1;
  TL_ASSERT(setsockopt(socket_, SOL_PACKET, PACKET_AUXDATA, &on, sizeof on) == 0);
  wait_at_most(socket_, 200);
}

Capture::~Capture() {
  close(socket_);
}

std::optional<Capture::Frame> Capture::next() {
  std::vector<std::byte> bytes(16384);
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(tpacket_auxdata))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = recvmsg(socket_, &message, 0);
  if (length < 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(length));
  Frame frame{std::move(bytes), std::nullopt};
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr; part_of = CMSG_NXTHDR(&message, part_of)) {
    if (part_of->cmsg_level != SOL_PACKET || part_of->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata aux;
    std::memcpy(&aux, CMSG_DATA(part_of), sizeof aux);
    if ((aux.tp_status & TP_STATUS_VLAN_VALID) != 0) frame.tci = aux.tp_vlan_tci;
  }
  return frame;
}

void Capture::send(std::span<const std::byte> frame) {
  TL_ASSERT(::send(socket_, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
}

KernelSocket::KernelSocket(bool v6, std::uint16_t port)
    : v6_(v6), socket_(socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  socklen_t length = 0;
  const sockaddr_storage address = address_of("", v6, port, &length);
  TL_ASSERT(bind(socket_, reinterpret_cast<const sockaddr*>(&address), length) == 0);
  wait_at_most(socket_, 10);
}

KernelSocket::~KernelSocket() {
  close(socket_);
}

bool KernelSocket::send(const std::string& to, std::uint16_t port, const std::string& payload) {
  socklen_t length = 0;
  const sockaddr_storage address = address_of(to, v6_, port, &length);
  return sendto(socket_, payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&address), length) ==
         static_cast<ssize_t>(payload.size());
}

std::string KernelSocket::receive() {
  std::string payload(2048, '\0');
  const ssize_t length = recv(socket_, payload.data(), payload.size(), 0);
  payload.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return payload;
}

std::uint64_t received_frames(const std::string& interface) {
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(interface + ":");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + interface.size() + 1));
    std::uint64_t bytes = 0, frames = 0;
    numbers >> bytes >> frames;
    return frames;
  }
  return 0;
}

}  // namespace tensorlane::dpdk::testing
