// Frames that strangers send to a packet port, with and without right checksums. Whatever comes, what is handed out
// lies in the frame and came from a single host; every frame is handed out, counted as a drop, or ARP or neighbour
// discovery; and no frame changes a neighbour that was not asked.
//
// Input: records: how the frame is changed, how long it is, and so many bytes.
#include <array>
#include <vector>

#include "daemon/transport/dpdk/port/framing.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using namespace dpdk;

constexpr MacAddress kMac{2, 0, 0, 0, 0, 1}, kPeerMac{2, 0, 0, 0, 0, 2};

PortConfig config(std::uint8_t kind) {
  PortConfig config;
  config.device = "fuzzed";
  config.addresses = {{parse_ip("10.0.0.1").value(), 24, std::nullopt},
                      {parse_ip("fd00::1").value(), 64, std::nullopt}};
  config.udp_port = 4000;
  config.queues = {{46, 6}, {0, 0}};
  if (kind % 4 != 0) config.vlan = static_cast<std::uint16_t>(kind % 4 - 1);
  config.neighbours = {{parse_ip("10.0.0.2").value(), kPeerMac}};
  return config;
}

std::uint64_t sum(const PortCounts& counts) {
  std::uint64_t all = 0;
  for (const std::uint64_t drops : counts.dropped) all += drops;
  return all;
}

// Makes checksums right, so that the fuzzer comes behind them.
void mend(std::vector<std::byte>& frame) {
  std::size_t at = kEthernetBytes;
  if (frame.size() >= at + 8 && load16(&frame[12]) == kEtherTypeVlan) at += kVlanTagBytes;
  if (frame.size() < at + kIpv6Bytes + kUdpBytes) return;
  const std::uint16_t type = load16(&frame[at - 2]);
  const bool v6 = type == kEtherTypeIpv6;
  if (!v6 && type != kEtherTypeIpv4) return;
  std::byte* const ip = &frame[at];
  const std::size_t header = v6 ? kIpv6Bytes : std::size_t{load8(ip)} % 16 * 4;
  const std::size_t total = v6 ? kIpv6Bytes + load16(ip + 4) : load16(ip + 2);
  if (header < kIpv4Bytes || total < header + kUdpBytes || total > frame.size() - at) return;
  if (!v6) {
    store16(ip + 10, 0);
    store_checksum(ip + 10, add_to_sum(0, {ip, header}));
  }
  const std::uint8_t protocol = load8(ip + (v6 ? 6 : 9));
  const std::size_t place = header + (protocol == kProtocolIcmpv6 ? 2 : 6), bytes = total - header;
  store16(ip + place, 0);
  store_checksum(ip + place,
                 add_to_sum(pseudo_header_sum(load_ip(ip + (v6 ? 8 : 12), v6), load_ip(ip + (v6 ? 24 : 16), v6),
                                              protocol, static_cast<std::uint32_t>(bytes)),
                            {ip + header, bytes}));
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  using namespace tensorlane::fuzz;
  Input input(data, size);
  Framing port(config(input.take<std::uint8_t>()), kMac);
  const PeerId fixed = port.add_peer(parse_ip("10.0.0.2").value()).value();
  const PeerId asked = port.add_peer(parse_ip("10.0.0.3").value()).value();
  std::array<std::byte, kMaxDiscoveryBytes> out;
  Time now(0);
  while (!input.empty()) {
    const auto kind = input.take<std::uint8_t>();
    const auto bytes = input.bytes(input.take<std::uint16_t>() % 2048);
    std::vector<std::byte> frame(bytes.begin(), bytes.end());
    if (kind % 2 != 0) mend(frame);
    FrameNotes notes{.ip_verified = (kind & 2) != 0, .udp_verified = (kind & 4) != 0};
    if ((kind & 8) != 0) notes.stripped_tci = static_cast<std::uint16_t>(kind << 8);
    const std::uint64_t before = sum(port.counts());
    const auto received = port.take(now, frame, notes);
    if (received) {
      TL_ASSERT(received->payload.data() >= frame.data());
      TL_ASSERT(received->payload.data() + received->payload.size() <= frame.data() + frame.size());
      TL_ASSERT(is_unicast(received->from) && received->dscp < 64 && received->pcp < 8);
    }
    TL_ASSERT(sum(port.counts()) - before <= (received ? 0U : 1U));
    now = now + microseconds(kind);
    while (const std::size_t length = port.next_discovery(now, out)) TL_ASSERT(length <= out.size());
    std::array<std::byte, kMaxHeaderBytes + 1> packet;
    const std::size_t header = port.write(0, {fixed, 50000}, packet.data() + kMaxHeaderBytes, 1, {});
    TL_ASSERT(header > 0 && load_mac(packet.data() + kMaxHeaderBytes - header) == kPeerMac);
    (void)port.reachable(asked);
  }
  return 0;
}
