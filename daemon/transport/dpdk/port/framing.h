// A port without its device: its peers and neighbours, what its frames look like, and what it counts. Pure; whoever
// owns it brings frames, times and memory. The port over ethdev has one, and a simulated port can.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/token_bucket.h"
#include "daemon/transport/dpdk/port/discovery.h"
#include "daemon/transport/dpdk/port/frame.h"
#include "daemon/transport/dpdk/port/headers.h"
#include "daemon/transport/dpdk/port/neighbours.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// One owner thread.
class Framing {
 public:
  // The configuration has passed check().
  Framing(PortConfig config, const MacAddress& mac);
  Framing(const Framing&) = delete;
  Framing& operator=(const Framing&) = delete;

  const PortConfig& config() const { return config_; }
  const MacAddress& mac() const { return filter_.mac; }

  // As in PacketPort.
  Result<PeerId> add_peer(const IpAddress& address);
  void remove_peer(PeerId peer);
  bool reachable(PeerId peer) const { return neighbours_.mac(peers_[peer.value].neighbour) != nullptr; }
  bool peer_is_v6(PeerId peer) const { return peers_[peer.value].address.v6; }

  // Writes the headers of a packet of that queue in front of its payload, into up to kMaxHeaderBytes, and answers how
  // many bytes that were; 0: the peer is not reachable.
  std::size_t write(std::size_t queue, const Path& path, std::byte* payload, std::size_t bytes, ChecksumOffload offload,
                    Parts behind = {});

  // A frame that has arrived: what it brings for the port's owner, in the frame's memory. Nothing: it was for the port
  // itself, or was dropped and counted.
  std::optional<Received> take(Time now, std::span<std::byte> frame, const FrameNotes& notes);
  // The next frame of ARP or neighbour discovery that is to be sent, with the tags of the most urgent queue, in at
  // least kMaxDiscoveryBytes. Its length; 0: none is due. Call it until then.
  std::size_t next_discovery(Time now, std::span<std::byte> out);

  PortCounts& counts() { return counts_; }
  const PortCounts& counts() const { return counts_; }
  void count_drop(Drop drop) { ++counts_.dropped[static_cast<std::size_t>(drop)]; }

 private:
  struct Peer {
    IpAddress address;
    const LocalAddress* from = nullptr;  // null: the place is free
    Neighbours::Index neighbour = 0;
    std::uint32_t users = 0;  // who have added it
  };
  static constexpr std::size_t kMaxAnswers = 32;

  std::optional<std::uint16_t> tci(std::size_t queue) const;
  const LocalAddress* local_for(const IpAddress& address, bool* direct) const;
  void take_message(Time now, const NeighbourMessage& message);

  PortConfig config_;
  FrameFilter filter_;
  Neighbours neighbours_;
  std::vector<Peer> peers_;
  std::vector<std::uint32_t> free_peers_;
  std::unordered_map<IpAddress, std::uint32_t> peer_of_;
  TokenBucket answer_rate_;
  std::array<NeighbourMessage, kMaxAnswers> answers_;  // questions that are to be answered
  std::size_t answers_count_ = 0;
  PortCounts counts_;
};

}  // namespace tensorlane::dpdk
