#include "packet_network.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::conformance {
namespace {

using dpdk::IpAddress;
using dpdk::PacketPort;
using dpdk::Path;
using dpdk::PeerId;
using dpdk::PortConfig;
using dpdk::Received;

// What a NIC's receive queue holds.
constexpr std::size_t kInbox = 4096;
// What waits in a queue of a device that takes nothing.
constexpr std::size_t kFullQueue = 8;

struct Packet {
  std::vector<std::byte> payload;
  IpAddress from, to;
  std::uint16_t source_port = 0;
  dpdk::QueueTags tags;
  // The rest of the payload: what was written into the room, and what is read elsewhere when the packet leaves.
  struct Part {
    std::vector<std::byte> written;
    std::span<const std::byte> elsewhere;
  };
  std::vector<Part> behind;

  void join() {
    for (const Part& part : behind) {
      payload.insert(payload.end(), part.written.begin(), part.written.end());
      payload.insert(payload.end(), part.elsewhere.begin(), part.elsewhere.end());
    }
    behind.clear();
  }
};

class NetworkPort;

std::map<IpAddress, NetworkPort*>& ports() {
  static std::map<IpAddress, NetworkPort*> all;
  return all;
}

class NetworkPort final : public PacketPort {
 public:
  NetworkPort(const PortConfig& config, const NetworkFaults& faults)
      : config_(config), faults_(faults), random_(faults.seed), queues_(config.queues.size()) {
    const bool added = ports().emplace(address(), this).second;
    TL_ASSERT(added);
    for (Queue& queue : queues_) queue.room.resize(max_payload(address().v6));
  }
  ~NetworkPort() override {
    TL_ASSERT(std::ranges::none_of(peers_, &Peer::there));  // whoever adds a peer removes it
    ports().erase(address());
    ::close(interrupt_);
  }

  const PortConfig& config() const override { return config_; }
  dpdk::MacAddress mac() const override { return {2}; }
  Result<PeerId> add_peer(const IpAddress& address) override {
    peers_.push_back({address, now_ + faults_.neighbour_time, true});
    return PeerId(static_cast<std::uint32_t>(peers_.size() - 1));
  }
  void remove_peer(PeerId peer) override {
    TL_ASSERT(peers_[peer.value].there);
    peers_[peer.value].there = false;
  }
  bool reachable(PeerId peer) const override {
    TL_ASSERT(peers_[peer.value].there);
    return now_ >= peers_[peer.value].known && ports().contains(peers_[peer.value].address);
  }

  std::span<std::byte> room(std::size_t queue) override {
    const std::size_t most = full() ? kFullQueue : config_.queue_packets;
    return queues_[queue].pending.size() < most ? queues_[queue].room : std::span<std::byte>();
  }
  bool commit(std::size_t queue, const Path& path, std::size_t bytes) override {
    if (!reachable(path.peer)) return false;
    const auto& room = queues_[queue].room;
    TL_ASSERT(bytes <= room.size());
    queues_[queue].pending.push_back({{room.begin(), room.begin() + static_cast<std::ptrdiff_t>(bytes)},
                                      address(),
                                      peers_[path.peer.value].address,
                                      path.source_port,
                                      config_.queues[queue]});
    counts_.sent[queue].packets += 1;
    return true;
  }
  bool commit(std::size_t index, const Path& path, dpdk::Parts parts) override {
    Queue& queue = queues_[index];
    if (!commit(index, path, parts.front().size())) return false;
    Packet& packet = queue.pending.back();
    for (const std::span<const std::byte> part : parts.subspan(1)) {
      const bool own = part.data() >= queue.room.data() && part.data() < queue.room.data() + queue.room.size();
      own ? packet.behind.push_back({{part.begin(), part.end()}, {}}) : packet.behind.push_back({{}, part});
    }
    if (parts.size() > 1) ++queue.borrowed;
    return true;
  }
  bool gathers() const override { return true; }
  std::uint64_t borrowed(std::size_t queue) const override { return queues_[queue].borrowed; }
  std::uint64_t released(std::size_t queue) const override { return queues_[queue].released; }
  void keep(std::size_t index) override {
    Queue& queue = queues_[index];
    for (Packet& packet : queue.pending) packet.join();
    queue.released = queue.borrowed;
  }
  std::size_t flush() override {
    if (full()) {
      std::size_t left = 0;
      for (const Queue& queue : queues_) left += queue.pending.size();
      return left;
    }
    for (Queue& queue : queues_) {
      for (Packet& packet : queue.pending) {
        packet.join();
        deliver(std::move(packet));
      }
      queue.pending.clear();
      queue.released = queue.borrowed;
    }
    return 0;
  }
  std::size_t receive(Time now, std::span<Received> out) override {
    now_ = now;
    taken_.clear();
    while (taken_.size() < out.size() && !inbox_.empty()) {
      taken_.push_back(std::move(inbox_.front()));
      inbox_.pop_front();
    }
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      Packet& packet = taken_[i];
      counts_.received_packets += 1;
      counts_.received_bytes += packet.payload.size();
      out[i] = {packet.payload, packet.from, packet.source_port, packet.tags.dscp, packet.tags.pcp, true, false};
    }
    return taken_.size();
  }

  dpdk::LinkState link() const override { return {true, BitsPerSecond(0)}; }
  const dpdk::PortCounts& counts() const override { return counts_; }
  std::vector<dpdk::DeviceCount> device_counts() const override { return {}; }
  std::span<const int> wake_descriptors() const override { return std::span(&interrupt_, 1); }
  void arm(bool on) override {
    armed_ = on;
    std::uint64_t count = 0;
    if (!on) std::ignore = ::read(interrupt_, &count, sizeof count);
  }

 private:
  struct Queue {
    std::vector<std::byte> room;
    std::vector<Packet> pending;
    std::uint64_t borrowed = 0, released = 0;
  };
  bool full() const { return faults_.full != nullptr && *faults_.full; }
  const IpAddress& address() const { return config_.addresses.front().address; }
  void interrupt() {
    const std::uint64_t one = 1;
    if (armed_) std::ignore = ::write(interrupt_, &one, sizeof one);
  }
  bool chance(double share) { return share > 0 && std::bernoulli_distribution(share)(random_); }
  void deliver(Packet packet) {
    const auto found = ports().find(packet.to);
    if (found == ports().end() || chance(faults_.lost)) return;
    if (faults_.held != nullptr && (*faults_.held >> packet.tags.dscp & 1) != 0) return;
    found->second->interrupt();
    if (packet.payload.size() > found->second->max_payload(packet.to.v6)) return;
    std::deque<Packet>& inbox = found->second->inbox_;
    if (inbox.size() >= kInbox) return;
    if (chance(faults_.doubled)) inbox.push_back(packet);
    if (chance(faults_.overtaken) && !inbox.empty()) {
      inbox.insert(inbox.end() - 1, std::move(packet));
    } else {
      inbox.push_back(std::move(packet));
    }
  }

  const PortConfig config_;
  const NetworkFaults faults_;
  std::mt19937_64 random_;
  std::vector<Queue> queues_;
  struct Peer {
    IpAddress address;
    Time known;
    bool there = false;
  };
  std::vector<Peer> peers_;  // each time that one was added
  const int interrupt_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  bool armed_ = false;
  Time now_;  // of the last receive()
  std::deque<Packet> inbox_;
  std::vector<Packet> taken_;  // handed out, until the next call
  dpdk::PortCounts counts_;
};

}  // namespace

std::unique_ptr<PacketPort> make_network_port(const PortConfig& config, const NetworkFaults& faults) {
  return std::make_unique<NetworkPort>(config, faults);
}

}  // namespace tensorlane::conformance
