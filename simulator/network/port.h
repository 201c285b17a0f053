// An egress port: a queue per level of service, a rate and a cable. Strict priority or first in, first out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>

#include "common/base/units.h"
#include "simulator/clock/event_queue.h"
#include "simulator/network/packet.h"

namespace tensorlane::simulator {

enum class Policy : std::uint8_t { kStrict, kFifo };

struct PortConfig {
  BitsPerSecond rate{1'000'000'000};
  Duration delay = microseconds(2);  // of the cable
  Policy policy = Policy::kStrict;
  Bytes buffer = mib(1);  // per level under kStrict, in all under kFifo; more is dropped
};

class Port {
 public:
  // `deliver` is called for every packet at the far end of the cable; `left`, if there is one, when its last bit has
  // left the port.
  Port(EventQueue& events, const PortConfig& config, std::function<void(Packet)> deliver,
       std::function<void(const Packet&)> left = nullptr);

  // Queues the packet; false when the buffer is full, and the packet is then unchanged.
  [[nodiscard]] bool offer(Packet&& packet);
  // From the next packet on.
  void set_rate(BitsPerSecond rate) { config_.rate = rate; }
  BitsPerSecond rate() const { return config_.rate; }
  // A level that is paused waits, from the next packet on; in a single queue it holds up the others.
  void set_paused(std::size_t level, bool paused);
  Bytes queued() const;
  // In the queue that a packet of this level joins.
  Bytes queued(std::size_t level) const { return Bytes(queued_[policy_queue(level)]); }
  Bytes peak() const { return peak_; }  // most ever queued

 private:
  void transmit_next();
  std::size_t policy_queue(std::size_t level) const { return config_.policy == Policy::kStrict ? level : 0; }

  EventQueue& events_;
  PortConfig config_;
  std::function<void(Packet)> deliver_;
  std::function<void(const Packet&)> left_;
  std::uint32_t paused_ = 0;  // levels, as bits
  std::array<std::deque<Packet>, kLevels> queues_;
  std::array<std::uint64_t, kLevels> queued_{};
  Bytes peak_;
  bool busy_ = false;
};

}  // namespace tensorlane::simulator
