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
  // `deliver` is called for every packet at the far end of the cable.
  Port(EventQueue& events, const PortConfig& config, std::function<void(Packet)> deliver);

  // Queues the packet; false when the buffer is full, and the packet is then unchanged.
  [[nodiscard]] bool offer(Packet&& packet);
  // From the next packet on.
  void set_rate(BitsPerSecond rate) { config_.rate = rate; }
  BitsPerSecond rate() const { return config_.rate; }
  Bytes queued() const;
  Bytes peak() const { return peak_; }  // most ever queued

 private:
  void transmit_next();
  std::size_t queue_of(const Packet& packet) const { return config_.policy == Policy::kStrict ? packet.level : 0; }

  EventQueue& events_;
  PortConfig config_;
  std::function<void(Packet)> deliver_;
  std::array<std::deque<Packet>, kLevels> queues_;
  std::array<std::uint64_t, kLevels> queued_{};
  Bytes peak_;
  bool busy_ = false;
};

}  // namespace tensorlane::simulator
