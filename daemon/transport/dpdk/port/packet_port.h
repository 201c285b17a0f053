// A NIC port that a program drives itself: UDP payloads go out and come in as bursts, one transmit queue for each
// class. The interface knows nothing of DPDK, so that a simulated port can have it, too. daemon/transport/dpdk/ethdev
// has the real one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/transport/dpdk/port/address.h"

namespace tensorlane::dpdk {

// Of the headers before a payload.
constexpr std::size_t ip_udp_bytes(bool v6) {
  return v6 ? 48 : 28;
}
// One for each data class and one for control.
inline constexpr std::size_t kMaxTransmitQueues = kMaxDataClasses + 1;
inline constexpr std::size_t kMaxReceiveQueues = 16;
inline constexpr std::size_t kMaxLocalAddresses = 8;
inline constexpr std::uint16_t kMinMtu = 1280, kMaxMtu = 9600;  // bytes of IP

// A payload in pieces of memory, at most so many.
using Parts = std::span<const std::span<const std::byte>>;
inline constexpr std::size_t kMostParts = 5;
constexpr std::size_t bytes_of(Parts parts) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> part : parts) bytes += part.size();
  return bytes;
}

// What the packets of a transmit queue carry.
struct QueueTags {
  std::uint8_t dscp = 0;  // below 64
  std::uint8_t pcp = 0;   // below 8; only where packets have a VLAN tag
};

// An address of this port. Peers inside of the prefix are neighbours; others are reached through the gateway, which is
// inside of the prefix, and without one they are not reached.
struct LocalAddress {
  IpAddress address;
  std::uint8_t prefix = 0;  // bits
  std::optional<IpAddress> gateway;
};

// A neighbour that is not asked who it is, and that no packet from the network can change.
struct StaticNeighbour {
  IpAddress address;
  MacAddress mac{};
};

struct PortConfig {
  // The address of a PCI device, or a virtual device with its arguments: "net_af_packet0,iface=veth0".
  std::string device;
  std::vector<LocalAddress> addresses;  // the first one of a family is the source of what is sent
  std::uint16_t udp_port = 0;           // where everybody receives: of this port and of its peers
  std::vector<QueueTags> queues;        // transmit queues, the most urgent first
  // The VLAN of the port's packets; 0: no VLAN, but a tag for the PCP's sake; none: no tag.
  std::optional<std::uint16_t> vlan;
  std::uint16_t mtu = 1500;  // bytes of IP
  std::uint16_t receive_queues = 1;
  // Packets that a transmit queue holds at most, and a receive queue. A device may round them. A short transmit queue
  // keeps the packets of its class from filling the NIC (law 8).
  std::uint16_t queue_packets = 256, receive_packets = 1024;
  std::vector<StaticNeighbour> neighbours;
  std::uint32_t max_peers = 4096;  // hosts that are sent to; also of neighbours that are asked
  bool interrupts = false;         // ask the device for interrupts when packets arrive: wake_descriptors()
};
// Whether the values can be: ranges, families, a gateway inside of its prefix, no address twice. Error:
// kInvalidArgument.
Status check(const PortConfig& config);

// A host that a port sends to. Of that port only, and until remove_peer().
using PeerId = Strong<struct PeerIdTag, std::uint32_t>;

// The way of a flow. Switches that spread traffic over several links do so by its ports, so a flow keeps its own
// source port: any from 49152 on; flow_source_port() makes one of a hash.
struct Path {
  PeerId peer;
  std::uint16_t source_port = 0;
};
constexpr std::uint16_t flow_source_port(std::uint64_t hash) {
  return static_cast<std::uint16_t>(49152 + hash % 16384);
}

// A UDP payload that has arrived, whole, with right checksums, for an address and the UDP port of this port.
struct Received {
  std::span<std::byte> payload;  // may be written to
  IpAddress from;
  std::uint16_t source_port = 0;
  std::uint8_t dscp = 0, pcp = 0;  // pcp is 0 where the packet came without a tag
  bool tagged = false;             // had a VLAN tag
  bool congestion = false;         // a switch has marked it (ECN: CE)
};

// Why a packet that arrived was not handed out. Packets of ARP and neighbour discovery that the port has answered or
// used are no drops.
enum class Drop : std::uint8_t {
  kShort,            // ends inside of a header
  kSegments,         // lies in more pieces of memory than one, and is too long to be copied into one
  kOwn,              // came from this port's own MAC address
  kForeignMac,       // for another MAC address
  kForeignVlan,      // in another VLAN
  kForeignProtocol,  // neither IP, nor ARP, nor UDP in it
  kForeignAddress,   // for another IP address
  kForeignPort,      // for another UDP port
  kBadSource,        // from an address that no single host can have
  kFragment,         // a piece of an IP packet
  kBadLength,        // the lengths of IP and UDP and that of the frame do not fit
  kIpChecksum,
  kUdpChecksum,
  kBadNeighbour,  // ARP or neighbour discovery that breaks its own rules
  kUnasked,       // a reply of ARP or neighbour discovery that nobody has asked for, or that a static neighbour forbids
  kAnswerLimited,  // a question of ARP or neighbour discovery beyond the rate of answers
};
inline constexpr std::size_t kDrops = static_cast<std::size_t>(Drop::kAnswerLimited) + 1;
// "ip_checksum", for names of metrics. Never null.
const char* drop_name(Drop drop);

// Since the port was opened.
struct PortCounts {
  struct Queue {
    std::uint64_t packets = 0;  // that the device has taken
    std::uint64_t bytes = 0;    // of their frames, without the FCS
    std::uint64_t full = 0;     // times that the device took fewer than it was given
    std::uint64_t refused = 0;  // packets that the device cannot send, whatever the time; they are dropped
  };
  std::array<Queue, kMaxTransmitQueues> sent;
  std::uint64_t received_packets = 0, received_bytes = 0;        // handed out; bytes of payload
  std::array<std::uint64_t, kDrops> dropped{};                   // by Drop
  std::uint64_t no_memory = 0;                                   // times that there was no packet buffer to send with
  std::uint64_t neighbour_questions = 0, neighbour_answers = 0;  // sent
  std::uint64_t link_changes = 0;

  std::uint64_t drops(Drop drop) const { return dropped[static_cast<std::size_t>(drop)]; }
};

struct LinkState {
  bool up = false;
  BitsPerSecond speed;  // 0: not known
  bool operator==(const LinkState&) const = default;
};

// A counter of the device, under the device's name for it: "rx_missed_errors", "tx_q3_packets",
// "rx_priority3_xoff_packets".
struct DeviceCount {
  std::string name;
  std::uint64_t value = 0;
};

// One owner thread, except for device_counts(). Nothing is allocated by what a lane calls in its turns: reachable(),
// room(), commit(), flush() and receive().
class PacketPort {
 public:
  PacketPort() = default;
  PacketPort(const PacketPort&) = delete;
  PacketPort& operator=(const PacketPort&) = delete;
  // Packets that have not gone to the device are dropped.
  virtual ~PacketPort() = default;

  virtual const PortConfig& config() const = 0;
  virtual MacAddress mac() const = 0;
  std::size_t queues() const { return config().queues.size(); }
  // Bytes that fit into one packet to an address of that family.
  std::size_t max_payload(bool v6) const { return config().mtu - ip_udp_bytes(v6); }

  // Looks for the way to a host, and asks the network for its MAC address in later calls of receive(). An address may
  // be added several times, counts once, and is removed as often. Errors: kInvalidArgument, it is no host's, or the
  // port has no address of its family, or it is outside of all prefixes and there is no gateway; kResourceExhausted,
  // max_peers.
  virtual Result<PeerId> add_peer(const IpAddress& address) = 0;
  virtual void remove_peer(PeerId peer) = 0;
  // Whether the MAC address behind that way is known. It stays known until a neighbour says another one.
  virtual bool reachable(PeerId peer) const = 0;

  // Sending in place: write a payload into room(), then commit() it; repeat, then flush().
  //
  // Memory for one payload of any family in a queue, the same until it is committed. Empty: the device takes no more
  // of this queue for now, or there is no memory (counted). Try again after other queues and receive().
  virtual std::span<std::byte> room(std::size_t queue) = 0;
  // Makes a packet of the first `bytes` in room(queue), which is not empty, and keeps it for the device. At most
  // max_payload() of the peer's family. False: the peer is not reachable; the room stays as it is.
  virtual bool commit(std::size_t queue, const Path& path, std::size_t bytes) = 0;
  // The same of a payload in parts, in their order: the first one lies at the beginning of room(queue), others may lie
  // there, too, and what lies elsewhere is read there until released() counts the packet, where the port gathers().
  virtual bool commit(std::size_t queue, const Path& path, Parts parts) = 0;
  // Whether reading a payload where it lies saves a copy: the driver copies what it sends, and is done with it when it
  // has taken it.
  virtual bool gathers() const = 0;
  // Packets of the queue that were committed and are read elsewhere, since the port was opened; and how many of them,
  // the first ones, are read no more.
  virtual std::uint64_t borrowed(std::size_t queue) const = 0;
  virtual std::uint64_t released(std::size_t queue) const = 0;
  // Copies what the device has not taken yet, so that all packets of the queue are released.
  virtual void keep(std::size_t queue) = 0;
  // Gives the device what was committed, the most urgent queue first. How many packets it has not taken; they stay and
  // go with the next flush.
  virtual std::size_t flush() = 0;

  // Takes what has arrived, at most out.size() payloads and 256, and does what is due: questions and answers of ARP and
  // neighbour discovery, the state of the link. How many; their memory is the caller's until the next call of
  // receive(). Looks at 64 packets more than out.size() at most, so that packets of strangers do not hold it up.
  virtual std::size_t receive(Time now, std::span<Received> out) = 0;

  // As receive() has seen it last, at most every 100 ms.
  virtual LinkState link() const = 0;
  virtual const PortCounts& counts() const = 0;
  // What the device and its driver count. Any thread, while the port exists. Allocates, and may ask the NIC's firmware.
  virtual std::vector<DeviceCount> device_counts() const = 0;

  // Descriptors that become readable when packets arrive while armed: one for each receive queue, or none, where the
  // driver has no interrupts or the configuration asks for none. Then whoever polls sleeps by time (idle_policy.h).
  virtual std::span<const int> wake_descriptors() const = 0;
  // Asks for interrupts from now on, or for no more of them, and then no descriptor is readable any more. Packets that
  // came before are not announced: receive() once more after arm(true), and sleep only when that was empty.
  virtual void arm(bool on) = 0;
};

}  // namespace tensorlane::dpdk
