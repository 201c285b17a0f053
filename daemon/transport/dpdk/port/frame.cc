#include "daemon/transport/dpdk/port/frame.h"

#include <algorithm>

#include "daemon/transport/dpdk/port/discovery.h"
#include "daemon/transport/dpdk/port/wire.h"

namespace tensorlane::dpdk {
namespace {

// One frame on its way through the layers.
class Parser {
 public:
  Parser(std::span<std::byte> frame, const FrameNotes& notes, const FrameFilter& filter)
      : rest_(frame), notes_(notes), filter_(filter) {}

  ParsedFrame run() {
    if (rest_.size() < kEthernetBytes) return drop(Drop::kShort);
    to_ = load_mac(rest_.data());
    from_ = load_mac(rest_.data() + 6);
    if (from_ == filter_.mac) return drop(Drop::kOwn);
    const bool group = (to_[0] & 1) != 0;
    if (!group && to_ != filter_.mac) return drop(Drop::kForeignMac);
    std::uint16_t ether_type = load16(rest_.data() + 12);
    rest_ = rest_.subspan(kEthernetBytes);
    std::optional<std::uint16_t> tci = notes_.stripped_tci;
    if (ether_type == kEtherTypeVlan) {
      if (rest_.size() < kVlanTagBytes) return drop(Drop::kShort);
      if (tci) return drop(Drop::kForeignVlan);  // two tags
      tci = load16(rest_.data());
      ether_type = load16(rest_.data() + 2);
      rest_ = rest_.subspan(kVlanTagBytes);
    }
    // A tag without a VLAN says no more than the PCP.
    if ((tci ? *tci & 0xfff : 0) != filter_.vlan.value_or(0)) return drop(Drop::kForeignVlan);
    result_.received.tagged = tci.has_value();
    result_.received.pcp = static_cast<std::uint8_t>(tci.value_or(0) >> 13);
    if (ether_type == kEtherTypeArp) return arp();
    if (ether_type == kEtherTypeIpv4) return ipv4();
    if (ether_type == kEtherTypeIpv6) return ipv6();
    return drop(Drop::kForeignProtocol);
  }

 private:
  ParsedFrame drop(Drop why) {
    result_.kind = ParsedFrame::Kind::kDropped;
    result_.drop = why;
    return result_;
  }
  bool own(const IpAddress& address) const {
    return std::any_of(filter_.addresses.begin(), filter_.addresses.end(),
                       [&](const LocalAddress& local) { return local.address == address; });
  }

  ParsedFrame arp() {
    if (to_ != filter_.mac && to_ != kBroadcastMac) return drop(Drop::kForeignMac);
    Drop why{};
    const auto message = parse_arp(rest_, from_, &why);
    return message ? neighbour(*message) : drop(why);
  }

  ParsedFrame neighbour(const NeighbourMessage& message) {
    const bool question = message.kind == NeighbourMessage::Kind::kQuestion;
    if (question && !own(message.subject)) return drop(Drop::kForeignAddress);
    // Answers come to whoever has asked, and to nobody else. An own address is nobody else's.
    if (!question && (to_ != filter_.mac || own(message.subject))) return drop(Drop::kUnasked);
    if (own(message.sender)) return drop(Drop::kBadSource);
    result_.kind = ParsedFrame::Kind::kNeighbour;
    result_.neighbour = message;
    return result_;
  }

  ParsedFrame ipv4() {
    if (rest_.size() < kIpv4Bytes) return drop(Drop::kShort);
    std::byte* const ip = rest_.data();
    const std::size_t header = std::size_t{load8(ip)} % 16 * 4, total = load16(ip + 2);
    if (load8(ip) >> 4 != 4 || header < kIpv4Bytes || total < header || total > rest_.size())
      return drop(Drop::kBadLength);
    if (!notes_.ip_verified && fold_sum(add_to_sum(0, {ip, header})) != 0xffff) return drop(Drop::kIpChecksum);
    const IpAddress source = load_ip(ip + 12, false), destination = load_ip(ip + 16, false);
    if (to_ != filter_.mac || !own(destination)) return drop(Drop::kForeignAddress);
    if (!is_unicast(source) || own(source)) return drop(Drop::kBadSource);
    if ((load16(ip + 6) & 0x3fff) != 0) return drop(Drop::kFragment);
    if (load8(ip + 9) != kProtocolUdp) return drop(Drop::kForeignProtocol);
    return udp(rest_.subspan(header, total - header), source, destination, load8(ip + 1));
  }

  ParsedFrame ipv6() {
    if (rest_.size() < kIpv6Bytes) return drop(Drop::kShort);
    std::byte* const ip = rest_.data();
    const std::size_t bytes = load16(ip + 4);
    if (load8(ip) >> 4 != 6 || bytes > rest_.size() - kIpv6Bytes) return drop(Drop::kBadLength);
    const std::span<std::byte> packet = rest_.subspan(kIpv6Bytes, bytes);
    const IpAddress source = load_ip(ip + 8, true), destination = load_ip(ip + 24, true);
    const std::uint8_t protocol = load8(ip + 6);
    if (protocol == kProtocolIcmpv6) return icmpv6({ip, kIpv6Bytes}, packet, destination);
    if (to_ != filter_.mac || !own(destination)) return drop(Drop::kForeignAddress);
    if (!is_unicast(source) || own(source)) return drop(Drop::kBadSource);
    if (protocol == kProtocolFragment) return drop(Drop::kFragment);
    if (protocol != kProtocolUdp) return drop(Drop::kForeignProtocol);
    return udp(packet, source, destination, static_cast<std::uint8_t>(load16(ip) >> 4));
  }

  ParsedFrame icmpv6(std::span<const std::byte> ip, std::span<const std::byte> packet, const IpAddress& destination) {
    const bool alone = to_ == filter_.mac && own(destination);
    const bool asked = to_ == multicast_mac(destination) &&
                       std::any_of(filter_.addresses.begin(), filter_.addresses.end(), [&](const LocalAddress& local) {
                         return local.address.v6 && solicited_node(local.address) == destination;
                       });
    if (!alone && !asked) return drop(Drop::kForeignAddress);
    Drop why{};
    const auto message = parse_icmpv6(ip, packet, from_, &why);
    return message ? neighbour(*message) : drop(why);
  }

  ParsedFrame udp(std::span<std::byte> packet, const IpAddress& source, const IpAddress& destination,
                  std::uint8_t traffic_class) {
    if (packet.size() < kUdpBytes || load16(packet.data() + 4) != packet.size()) return drop(Drop::kBadLength);
    if (load16(packet.data() + 2) != filter_.udp_port) return drop(Drop::kForeignPort);
    if (!notes_.udp_verified) {
      const std::uint64_t pseudo =
          pseudo_header_sum(source, destination, kProtocolUdp, static_cast<std::uint32_t>(packet.size()));
      // IPv4 may leave it out; no port of ours does, and it may be all that protects a payload.
      const bool absent = load16(packet.data() + 6) == 0;
      if (absent || fold_sum(add_to_sum(pseudo, packet)) != 0xffff) return drop(Drop::kUdpChecksum);
    }
    Received& received = result_.received;
    received.payload = packet.subspan(kUdpBytes);
    received.from = source;
    received.source_port = load16(packet.data());
    received.dscp = traffic_class >> 2;
    received.congestion = (traffic_class & 3) == 3;
    result_.kind = ParsedFrame::Kind::kDatagram;
    return result_;
  }

  std::span<std::byte> rest_;
  const FrameNotes& notes_;
  const FrameFilter& filter_;
  MacAddress to_{}, from_{};
  ParsedFrame result_;
};

}  // namespace

ParsedFrame parse_frame(std::span<std::byte> frame, const FrameNotes& notes, const FrameFilter& filter) {
  return Parser(frame, notes, filter).run();
}

}  // namespace tensorlane::dpdk
