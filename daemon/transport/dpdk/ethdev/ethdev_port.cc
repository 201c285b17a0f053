#include "daemon/transport/dpdk/ethdev/ethdev_port.h"

#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "daemon/transport/dpdk/ethdev/device.h"
#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/port/framing.h"

namespace tensorlane::dpdk {
namespace {

constexpr std::uint16_t kBurst = 32;
constexpr std::size_t kMoreLooks = 64;        // packets for nobody that a receive() looks at
constexpr std::size_t kDiscoveryAtOnce = 16;  // frames of ARP and neighbour discovery that a receive() sends
constexpr Duration kLinkInterval = milliseconds(100);

// DPDK keeps packet buffers at hand for threads that it knows. A thread is known from its first use of a port until it
// ends; where DPDK does not take it, everything works, and more slowly.
class KnownThread {
 public:
  KnownThread() : registered_(rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0) {}
  ~KnownThread() {
    if (registered_ && eal_runs()) rte_thread_unregister();
  }
  KnownThread(const KnownThread&) = delete;
  KnownThread& operator=(const KnownThread&) = delete;

 private:
  bool registered_;
};
void make_thread_known() {
  thread_local const KnownThread known;
}

class EthdevPort final : public PacketPort {
 public:
  EthdevPort(const PortConfig& config, std::unique_ptr<Device> device)
      : device_(std::move(device)),
        framing_(config, device_->mac()),
        id_(device_->id()),
        payload_offset_(
            payload_offset(datagram_header_bytes(config.addresses.front().address.v6, config.vlan.has_value()))) {}

  ~EthdevPort() override {
    release();
    rte_pktmbuf_free(discovery_);
    for (Queue& queue : queues_) {
      rte_pktmbuf_free_bulk(queue.staged.data(), queue.count);
      rte_pktmbuf_free(queue.open);
    }
  }

  const PortConfig& config() const override { return framing_.config(); }
  MacAddress mac() const override { return framing_.mac(); }
  Result<PeerId> add_peer(const IpAddress& address) override { return framing_.add_peer(address); }
  void remove_peer(PeerId peer) override { framing_.remove_peer(peer); }
  bool reachable(PeerId peer) const override { return framing_.reachable(peer); }

  std::span<std::byte> room(std::size_t index) override {
    Queue& queue = queues_[index];
    if (queue.count == kStaged) flush_queue(index);
    if (queue.count == kStaged) return {};
    if (queue.open == nullptr) queue.open = make_buffer();
    if (queue.open == nullptr) return {};
    return {payload_of(queue), max_payload(false)};
  }

  bool commit(std::size_t index, const Path& path, std::size_t bytes) override {
    rte_mbuf* const packet = begin_packet(index, path, bytes, {});
    if (packet != nullptr) queues_[index].stage(packet);
    return packet != nullptr;
  }

  bool commit(std::size_t index, const Path& path, Parts parts) override {
    TL_ASSERT(!parts.empty() && parts.size() <= kMostParts);
    Queue& queue = queues_[index];
    TL_ASSERT(queue.open != nullptr);
    if (parts.size() == 1) return commit(index, path, parts.front().size());
    std::array<rte_mbuf*, kMostParts> segments;
    const auto more = static_cast<unsigned>(parts.size() - 1);
    const bool gathered = gathers() && rte_pktmbuf_alloc_bulk(device_->pool(), segments.data(), more) == 0;
    if (!gathered) return commit(index, path, join(queue, parts));
    rte_mbuf* const packet = begin_packet(index, path, parts.front().size(), parts.subspan(1));
    if (packet == nullptr) {
      rte_pktmbuf_free_bulk(segments.data(), more);
      return false;
    }
    rte_mbuf* last = packet;
    for (unsigned i = 0; i < more; ++i) {
      fill(queue, packet, segments[i], parts[i + 1]);
      last = last->next = segments[i];
      packet->pkt_len += segments[i]->data_len;
    }
    packet->nb_segs = static_cast<std::uint16_t>(more + 1);
    ++queue.borrowed;
    queue.stage(packet);
    return true;
  }

  bool gathers() const override { return device_->copies(); }
  std::uint64_t borrowed(std::size_t queue) const override { return queues_[queue].borrowed; }
  std::uint64_t released(std::size_t queue) const override { return queues_[queue].released; }
  void keep(std::size_t index) override {
    Queue& queue = queues_[index];
    for (std::uint16_t i = 0; i < queue.count; ++i) {
      // There is room for all of a packet in its first mbuf.
      const int joined = rte_pktmbuf_linearize(queue.staged[i]);
      TL_ASSERT(joined == 0);
    }
    queue.released = queue.borrowed;
  }

  std::size_t flush() override {
    make_thread_known();
    std::size_t left = 0;
    for (std::size_t index = 0; index < queues(); ++index) left += flush_queue(index);
    return left;
  }

  std::size_t receive(Time now, std::span<Received> out) override {
    make_thread_known();
    release();
    const std::size_t most = std::min<std::size_t>(out.size(), kHeld);
    std::size_t taken = 0, looked = 0;
    for (std::uint16_t silent = 0; silent < device_->receive_queues() && taken < most && looked < most + kMoreLooks;) {
      std::array<rte_mbuf*, kBurst> burst;
      const auto wanted = static_cast<std::uint16_t>(std::min<std::size_t>(kBurst, most - taken));
      const std::uint16_t count = rte_eth_rx_burst(id_, next_queue_, burst.data(), wanted);
      next_queue_ = static_cast<std::uint16_t>(next_queue_ + 1) % device_->receive_queues();
      silent = count == 0 ? silent + 1 : 0;
      looked += count;
      for (std::uint16_t i = 0; i < count; ++i) taken += take(now, burst[i], out[taken]) ? 1 : 0;
    }
    discover(now);
    look_at_link(now);
    return taken;
  }

  LinkState link() const override { return link_; }
  const PortCounts& counts() const override { return framing_.counts(); }
  std::vector<DeviceCount> device_counts() const override { return device_->counts(); }
  std::span<const int> wake_descriptors() const override { return device_->wake_descriptors(); }
  void arm(bool on) override {
    const std::vector<int>& descriptors = device_->wake_descriptors();
    for (std::uint16_t queue = 0; queue < descriptors.size(); ++queue) {
      if (on) {
        rte_eth_dev_rx_intr_enable(id_, queue);
        continue;
      }
      rte_eth_dev_rx_intr_disable(id_, queue);
      std::uint64_t interrupts = 0;  // that nobody has looked at: the descriptor is readable for their sake
      std::ignore = ::read(descriptors[queue], &interrupts, sizeof interrupts);
    }
  }

 private:
  // What waits for the device, in order.
  struct Queue {
    std::array<rte_mbuf*, kStaged> staged{};
    std::uint16_t count = 0;
    rte_mbuf* open = nullptr;  // what room() has given
    // Of packets in several parts, some of which lie outside of DPDK's memory; and how many the device has read.
    std::uint64_t borrowed = 0, released = 0;
    rte_mbuf_ext_shared_info outside = owned_by_others();

    void stage(rte_mbuf* packet) { staged[count++] = packet; }
    // Those in front are gone.
    void forget(std::uint16_t gone) {
      std::copy(staged.data() + gone, staged.data() + count, staged.data());
      count = static_cast<std::uint16_t>(count - gone);
    }
  };

  // Nobody is to be asked when a part of a packet is read no more: see keep() and flush_queue().
  static rte_mbuf_ext_shared_info owned_by_others() {
    rte_mbuf_ext_shared_info info{};
    info.free_cb = [](void*, void*) {};
    rte_mbuf_ext_refcnt_set(&info, 1);
    return info;
  }

  std::byte* payload_of(const Queue& queue) const {
    return rte_pktmbuf_mtod_offset(queue.open, std::byte*, payload_offset_);
  }

  // The packet whose payload begins with `bytes` in the room of the queue, with its headers, which are of the whole.
  // Null: the peer is not reachable.
  rte_mbuf* begin_packet(std::size_t index, const Path& path, std::size_t bytes, Parts behind) {
    Queue& queue = queues_[index];
    TL_ASSERT(queue.open != nullptr);
    const std::size_t header =
        framing_.write(index, path, payload_of(queue), bytes, device_->transmit_checksums(), behind);
    if (header == 0) return nullptr;
    rte_mbuf* const packet = std::exchange(queue.open, nullptr);
    packet->data_off = static_cast<std::uint16_t>(packet->data_off + payload_offset_ - header);
    packet->data_len = static_cast<std::uint16_t>(header + bytes);
    packet->pkt_len = packet->data_len;
    ask_for_checksums(packet, framing_.peer_is_v6(path.peer));
    return packet;
  }

  // Makes one part of all that has been written for a packet, and what lies elsewhere. How long it is.
  std::size_t join(Queue& queue, Parts parts) const {
    std::array<std::byte, kMaxMtu> whole;
    std::size_t bytes = 0;
    for (const std::span<const std::byte> part : parts) {
      TL_ASSERT(bytes + part.size() <= whole.size());
      std::memcpy(whole.data() + bytes, part.data(), part.size());
      bytes += part.size();
    }
    std::memcpy(payload_of(queue), whole.data(), bytes);
    return bytes;
  }

  // A part behind the first: one that was written into the room of the packet is copied, so that keep() has that room.
  static void fill(Queue& queue, const rte_mbuf* packet, rte_mbuf* segment, std::span<const std::byte> part) {
    const auto* const room = static_cast<const std::byte*>(packet->buf_addr);
    if (part.data() >= room && part.data() < room + packet->buf_len) {
      std::memcpy(rte_pktmbuf_mtod(segment, std::byte*), part.data(), part.size());
    } else {
      auto* const at = const_cast<std::byte*>(part.data());  // is only read
      rte_mbuf_ext_refcnt_update(&queue.outside, 1);
      rte_pktmbuf_attach_extbuf(segment, at, RTE_BAD_IOVA, static_cast<std::uint16_t>(part.size()), &queue.outside);
    }
    segment->data_len = static_cast<std::uint16_t>(part.size());
  }

  rte_mbuf* make_buffer() {
    rte_mbuf* const buffer = rte_pktmbuf_alloc(device_->pool());
    if (buffer == nullptr) ++framing_.counts().no_memory;
    return buffer;
  }

  void ask_for_checksums(rte_mbuf* packet, bool v6) const {
    const ChecksumOffload offload = device_->transmit_checksums();
    if (!offload.udp && (v6 || !offload.ip)) return;
    packet->l2_len = config().vlan ? kEthernetBytes + kVlanTagBytes : kEthernetBytes;
    packet->l3_len = v6 ? kIpv6Bytes : kIpv4Bytes;
    packet->ol_flags |= v6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;
    if (!v6 && offload.ip) packet->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
    if (offload.udp) packet->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM;
  }

  // How many packets of the queue the device has not taken.
  std::size_t flush_queue(std::size_t index) {
    Queue& queue = queues_[index];
    const auto number = static_cast<std::uint16_t>(index);
    PortCounts::Queue& counted = framing_.counts().sent[index];
    while (queue.count > 0) {
      std::array<std::uint32_t, kStaged> bytes;  // the device frees what it takes
      std::array<bool, kStaged> borrows;
      for (std::uint16_t i = 0; i < queue.count; ++i) {
        bytes[i] = queue.staged[i]->pkt_len;
        borrows[i] = queue.staged[i]->nb_segs > 1;
      }
      std::uint16_t ready = queue.count;
      if (device_->transmit_checksums().ip || device_->transmit_checksums().udp)
        ready = rte_eth_tx_prepare(id_, number, queue.staged.data(), queue.count);
      const std::uint16_t sent = rte_eth_tx_burst(id_, number, queue.staged.data(), ready);
      counted.packets += sent;
      for (std::uint16_t i = 0; i < sent; ++i) {
        counted.bytes += bytes[i];
        queue.released += borrows[i] ? 1 : 0;
      }
      if (sent < ready) ++counted.full;
      const bool refused = sent == ready && ready < queue.count;
      queue.forget(sent);
      if (!refused) break;
      // The device will never take the first one, and what is behind it must not wait.
      queue.released += borrows[sent] ? 1 : 0;
      rte_pktmbuf_free(queue.staged[0]);
      queue.forget(1);
      ++counted.refused;
    }
    return queue.count;
  }

  // Whether `into` is filled, and the packet kept until the next receive().
  bool take(Time now, rte_mbuf* packet, Received& into) {
    if (packet->nb_segs > 1 && rte_pktmbuf_linearize(packet) != 0) {
      framing_.count_drop(Drop::kSegments);
      rte_pktmbuf_free(packet);
      return false;
    }
    FrameNotes notes;
    const std::uint64_t flags = packet->ol_flags;
    if ((flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0) notes.stripped_tci = packet->vlan_tci;
    // NONE: the packet was checked, though its field is not filled in, as between virtual machines of a host.
    const std::uint64_t ip = flags & RTE_MBUF_F_RX_IP_CKSUM_MASK, udp = flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
    notes.ip_verified = ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD || ip == RTE_MBUF_F_RX_IP_CKSUM_NONE;
    notes.udp_verified = udp == RTE_MBUF_F_RX_L4_CKSUM_GOOD || udp == RTE_MBUF_F_RX_L4_CKSUM_NONE;
    const auto received = framing_.take(now, {rte_pktmbuf_mtod(packet, std::byte*), packet->data_len}, notes);
    if (!received) {
      rte_pktmbuf_free(packet);
      return false;
    }
    into = *received;
    held_[held_count_++] = packet;
    return true;
  }

  void release() {
    rte_pktmbuf_free_bulk(held_.data(), static_cast<unsigned>(held_count_));
    held_count_ = 0;
  }

  // They travel in the most urgent queue, and wait where it is full.
  void discover(Time now) {
    Queue& queue = queues_[0];
    std::size_t made = 0;
    for (; made < kDiscoveryAtOnce && queue.count < kStaged; ++made) {
      if (discovery_ == nullptr) discovery_ = make_buffer();
      if (discovery_ == nullptr) break;
      const std::size_t bytes =
          framing_.next_discovery(now, {rte_pktmbuf_mtod(discovery_, std::byte*), kMaxDiscoveryBytes});
      if (bytes == 0) break;
      rte_mbuf* const packet = std::exchange(discovery_, nullptr);
      packet->data_len = static_cast<std::uint16_t>(bytes);
      packet->pkt_len = packet->data_len;
      queue.stage(packet);
    }
    if (made > 0) flush_queue(0);
  }

  void look_at_link(Time now) {
    if (looked_at_link_ && now - *looked_at_link_ < kLinkInterval) return;
    looked_at_link_ = now;
    const LinkState link = device_->link().value_or(link_);
    if (link.up != link_.up) ++framing_.counts().link_changes;
    link_ = link;
  }

  std::unique_ptr<Device> device_;
  Framing framing_;
  const std::uint16_t id_;
  const std::uint16_t payload_offset_;
  std::array<Queue, kMaxTransmitQueues> queues_;
  std::array<rte_mbuf*, kHeld> held_{};
  std::size_t held_count_ = 0;
  rte_mbuf* discovery_ = nullptr;
  std::uint16_t next_queue_ = 0;
  LinkState link_;
  std::optional<Time> looked_at_link_;
};

}  // namespace

Result<std::unique_ptr<PacketPort>> open_port(const PortConfig& config) {
  TL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::open(config));
  return std::unique_ptr<PacketPort>(std::make_unique<EthdevPort>(config, std::move(device)));
}

}  // namespace tensorlane::dpdk
