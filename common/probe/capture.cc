#include "common/probe/capture.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/probe/packet.h"

namespace tensorlane::probe {
namespace {

// Accepts IPv4 and IPv6 packets of TCP that have SYN and not ACK; counts from the network header.
int filter_syn(int fd) {
  constexpr std::uint32_t kAll = 256;
  std::array<sock_filter, 16> program{{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x60, 6, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x40, 0, 11),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 9),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 0, 9),
      BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),
      BPF_STMT(BPF_LD | BPF_B | BPF_IND, 13),
      BPF_JUMP(BPF_JMP | BPF_JA, 3, 0, 0),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 6),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 0, 4),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 53),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kAll),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0 ? 0 : errno;
}

std::uint8_t pcp_of(const msghdr& message) {
  for (const cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_PACKET || part->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata about{};
    std::memcpy(&about, CMSG_DATA(part), sizeof about);
    if ((about.tp_status & TP_STATUS_VLAN_VALID) != 0) return static_cast<std::uint8_t>(about.tp_vlan_tci >> 13);
  }
  return kUnknown;
}

}  // namespace

int Capture::open() {
  // No protocol yet: nothing arrives before the filter is in place.
  socket_ = Socket(::socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_.valid()) return errno;
  const int one = 1;
  ::setsockopt(socket_.fd(), SOL_PACKET, PACKET_AUXDATA, &one, sizeof one);
  int error = filter_syn(socket_.fd());
  sockaddr_ll everything{};
  everything.sll_family = AF_PACKET;
  everything.sll_protocol = htons(ETH_P_ALL);
  if (error == 0 && ::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&everything), sizeof everything) != 0)
    error = errno;
  if (error != 0) socket_ = Socket();
  return error;
}

void Capture::drain() {
  if (out_.size() > kMaxKept) out_.clear();
  if (in_.size() > kMaxKept) in_.clear();
  for (std::size_t packets = 0; socket_.valid() && packets < kMaxKept; ++packets) {
    std::array<std::uint8_t, 256> bytes{};
    alignas(cmsghdr) std::array<char, 256> control{};
    sockaddr_ll from{};
    iovec piece{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
    if (got <= 0) return;
    const auto facts = read_packet(std::span(bytes).first(static_cast<std::size_t>(got)));
    if (!facts) continue;
    const Marks marks{facts->dscp, pcp_of(message)};
    if (from.sll_pkttype == PACKET_OUTGOING)
      out_[{facts->destination, facts->destination_port, facts->source_port}] = marks;
    else
      in_[{facts->source, facts->destination_port, facts->source_port}] = marks;
  }
}

std::optional<Marks> Capture::find(const std::map<Key, Marks>& seen, const Key& key) {
  const auto found = seen.find(key);
  return found == seen.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Marks> Capture::outgoing(const std::string& destination, std::uint16_t port, std::uint16_t source_port) {
  const std::lock_guard lock(mutex_);
  drain();
  return find(out_, {destination, port, source_port});
}

std::optional<Marks> Capture::incoming(const std::string& source, std::uint16_t source_port, std::uint16_t port) {
  const std::lock_guard lock(mutex_);
  drain();
  return find(in_, {source, port, source_port});
}

}  // namespace tensorlane::probe
