// This end of a flow between two ports: the number by which its packets are known, and the way to the peer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/base/status.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

class Flow;

// Which flow a packet is for, by the number that it begins with. A number comes again only after 65,536 others of its
// place, and a packet that is late proves to be of another association anyway. One thread.
class FlowNumbers {
 public:
  // Error: kResourceExhausted, there are 65,536 flows.
  Result<std::uint32_t> add();
  void remove(std::uint32_t number);
  // Null until a flow is there.
  void set(std::uint32_t number, Flow* flow) { entries_[number & kPlace].flow = flow; }
  Flow* find(std::uint32_t number) const {
    const std::uint32_t place = number & kPlace;
    return place < entries_.size() && entries_[place].number == number ? entries_[place].flow : nullptr;
  }

 private:
  static constexpr std::uint32_t kPlace = 0xffff, kAgain = 0x10000;
  struct Entry {
    std::uint32_t number = 0;
    Flow* flow = nullptr;
  };
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;  // numbers to be given
};

// What a flow may send before it has asked for credit: a short message with what is around it.
inline constexpr Bytes kUnasked{4096 + 256};

// What the other end hears in the handshake. On the wire, little-endian.
struct Parameters {
  std::uint32_t version = 0;  // of datagrams
  std::uint32_t number = 0;
  std::array<std::uint8_t, 16> address{};
  std::uint16_t packet_bytes = 0;  // of a UDP payload, at most
  std::uint16_t udp_port = 0;
  std::uint16_t unasked = 0;  // bytes that a flow may send to it before it has asked for credit
  std::uint8_t v6 = 0;
  std::uint8_t reserved = 0;
};
static_assert(sizeof(Parameters) == 32 && std::has_unique_object_representations_v<Parameters>);

// Gives number and peer back when it goes. `numbers` and `port` outlive it.
class Way {
 public:
  // Error: that of FlowNumbers::add().
  static Result<std::unique_ptr<Way>> open(FlowNumbers& numbers, PacketPort& port);
  ~Way();
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  Parameters mine() const;
  // Towards an end with such parameters, which may be anything. `hash` spreads flows over paths. Errors: kMismatch
  // (another version, UDP port or address family), kInvalidArgument (no address, or one that is not reached from here),
  // kResourceExhausted (too many peers).
  Status go(const Parameters& theirs, std::uint64_t hash);

  // After go():
  bool reachable() const { return port_.reachable(path_.peer); }
  const Path& path() const { return path_; }
  std::uint32_t number() const { return number_; }
  std::uint32_t remote() const { return remote_; }
  std::size_t packet_bytes() const { return packet_bytes_; }
  Bytes unasked() const { return unasked_; }  // as the peer says
  const IpAddress& peer() const { return peer_; }

 private:
  Way(FlowNumbers& numbers, PacketPort& port, std::uint32_t number) : numbers_(numbers), port_(port), number_(number) {}

  FlowNumbers& numbers_;
  PacketPort& port_;
  const std::uint32_t number_;
  bool has_peer_ = false;
  Path path_;
  IpAddress peer_;
  std::uint32_t remote_ = 0;
  std::size_t packet_bytes_ = 0;
  Bytes unasked_;
};

}  // namespace tensorlane::dpdk
