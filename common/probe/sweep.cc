#include "common/probe/sweep.h"

#include <linux/errqueue.h>
#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "common/probe/packet.h"

namespace tensorlane::probe {
namespace {

// Who answered, by the error queue of a socket: the kernel keeps the address and not what was quoted.
std::string offender_of(int fd) {
  std::array<char, 512> data{};
  alignas(cmsghdr) std::array<char, 512> control{};
  iovec piece{data.data(), data.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return {};
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    const bool ipv4 = part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR;
    const bool ipv6 = part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR;
    if (!ipv4 && !ipv6) continue;
    sock_extended_err error{};
    std::memcpy(&error, CMSG_DATA(part), sizeof error);
    const bool over = (error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == ICMP_TIME_EXCEEDED) ||
                      (error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == ICMP6_TIME_EXCEEDED);
    if (!over) continue;
    Address from;
    from.length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::memcpy(&from.storage, CMSG_DATA(part) + sizeof error, from.length);
    return from.text();
  }
  return {};
}

// One flow on its way through its hops.
class Walk {
 public:
  Walk(const FlowSpec& flow, const SweepOptions& options, bool raw)
      : flow_(flow),
        options_(options),
        raw_(raw),
        to_(Address::parse(flow.address, flow.port)),
        from_(Address::parse(flow.source, flow.source_port)) {
    seen_.id = flow.id;
    if (to_) destination_ = to_->text();
    next_hop();
  }

  bool over() const { return seen_.distance > flow_.hops; }
  int fd() const { return socket_.fd(); }

  // Sends a packet where none is on its way. False: it could not, and the walk ends.
  bool send() {
    if (socket_.valid()) return true;
    if (!to_ || !from_ || to_->is_ipv6() != from_->is_ipv6()) return false;
    socket_ = make_tagged(*to_, flow_.tag);
    if (!socket_.valid()) return false;
    const int yes = 1;
    const bool ipv6 = to_->is_ipv6();
    ::setsockopt(fd(), ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_RECVERR : IP_RECVERR, &yes, sizeof yes);
    forget_on_close(fd());
    if (set_hop_limit(fd(), ipv6, seen_.distance) != 0 || bind_to(fd(), *from_) != 0) return false;
    if (::connect(fd(), to_->get(), to_->length) != 0 && errno != EINPROGRESS && errno != EHOSTUNREACH) return false;
    answer_by_ = now_ms() + options_.answer_ms;
    return true;
  }

  // A hop has quoted a packet of this flow.
  bool is_quoted(const PacketFacts& quoted) const {
    return !over() && quoted.source_port == flow_.source_port && quoted.destination_port == flow_.port &&
           quoted.destination == destination_;
  }
  // True: this hop has answered.
  bool answered(const std::string& address, std::uint8_t dscp) {
    if (over() || address.empty() || before_.contains(address)) return false;  // a late answer of an earlier hop
    seen_.address = address;
    seen_.dscp = dscp;
    return true;
  }
  // True: this hop's time is over, or its answer came by the error queue.
  bool settled() {
    const std::int64_t now = now_ms();
    if (!raw_ && socket_.valid() && answered(offender_of(fd()), kUnknown)) return true;
    if (now < answer_by_) return false;
    socket_ = Socket();  // and again
    return now >= hop_by_;
  }
  const HopSeen& seen() const { return seen_; }
  void next_hop() {
    if (!seen_.address.empty()) before_.insert(seen_.address);
    seen_.address.clear();
    seen_.dscp = kUnknown;
    ++seen_.distance;
    socket_ = Socket();
    answer_by_ = 0;
    hop_by_ = now_ms() + options_.hop_ms;
  }

 private:
  const FlowSpec& flow_;
  const SweepOptions& options_;
  const bool raw_;
  const std::optional<Address> to_, from_;
  std::string destination_;
  Socket socket_;
  HopSeen seen_;
  std::set<std::string> before_;
  std::int64_t answer_by_ = 0, hop_by_ = 0;
};

// What came in on a raw socket, with who sent it.
std::optional<PacketFacts> read_icmp(int fd, bool ipv6, std::string* from) {
  std::array<std::uint8_t, 1500> bytes{};
  Address peer;
  peer.length = sizeof peer.storage;
  const ssize_t got = ::recvfrom(fd, bytes.data(), bytes.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&peer.storage), &peer.length);
  if (got < 0) {
    from->clear();
    return std::nullopt;
  }
  *from = peer.text();
  return read_time_exceeded(std::span(bytes).first(static_cast<std::size_t>(got)), ipv6);
}

}  // namespace

int IcmpSockets::open() {
  ipv4_ = Socket(::socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!ipv4_.valid()) return errno;
  const icmp_filter only{.data = ~(1U << ICMP_TIME_EXCEEDED)};
  ::setsockopt(ipv4_.fd(), SOL_RAW, ICMP_FILTER, &only, sizeof only);
  ipv6_ = Socket(::socket(AF_INET6, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_ICMPV6));
  if (!ipv6_.valid()) return errno;
  icmp6_filter only6;
  ICMP6_FILTER_SETBLOCKALL(&only6);
  ICMP6_FILTER_SETPASS(ICMP6_TIME_EXCEEDED, &only6);
  ::setsockopt(ipv6_.fd(), IPPROTO_ICMPV6, ICMP6_FILTER, &only6, sizeof only6);
  return 0;
}

void sweep(const std::vector<FlowSpec>& flows, const SweepOptions& options, const IcmpSockets& icmp,
           const std::function<void(const HopSeen&)>& tell) {
  const std::int64_t until = now_ms() + options.deadline_ms;
  std::vector<std::unique_ptr<Walk>> walks;
  std::size_t next = 0;
  const auto advance = [&](Walk& walk) {
    tell(walk.seen());
    walk.next_hop();
  };
  while ((next < flows.size() || !walks.empty()) && now_ms() < until) {
    while (next < flows.size() && walks.size() < options.at_once)
      walks.push_back(std::make_unique<Walk>(flows[next++], options, icmp.is_open()));
    std::erase_if(walks, [](const auto& walk) { return walk->over() || !walk->send(); });
    std::vector<pollfd> waited;
    for (const bool ipv6 : {false, true})
      if (icmp.is_open()) waited.push_back({icmp.fd(ipv6), POLLIN, 0});
    ::poll(waited.data(), waited.size(), 10);
    for (const bool ipv6 : {false, true}) {
      std::string from = "?";
      while (icmp.is_open() && !from.empty()) {
        const auto quoted = read_icmp(icmp.fd(ipv6), ipv6, &from);
        if (!quoted) continue;
        for (const auto& walk : walks)
          if (walk->is_quoted(*quoted) && walk->answered(from, quoted->dscp)) advance(*walk);
      }
    }
    for (const auto& walk : walks)
      if (!walk->over() && walk->settled()) advance(*walk);
  }
}

}  // namespace tensorlane::probe
