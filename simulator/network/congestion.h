// What makes the ports of `Network` crowded, and what its switch and NICs do about it: others' bursts, shared memory,
// pauses, marks with DCQCN's reaction. The rules are those of the planner's network (switch_memory.h, marking.h,
// dcqcn.h); packets are real here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/network/marking.h"
#include "simulator/network/packet.h"
#include "simulator/network/switch_memory.h"

namespace tensorlane::simulator {

struct CongestionConfig {
  std::optional<PauseThresholds> pauses;
  std::optional<SharedBuffer> buffer;
  std::optional<Marking> marking;
  // Bursts of others, who have a port of their own at the switch, to every host in turn: one after each gap of at most
  // twice `foreign_gap`, until `foreign_until`. 0: nobody else is there.
  Bytes foreign_burst;
  Duration foreign_gap = microseconds(200);
  Time foreign_until = Time(20'000'000);
  std::size_t foreign_level = 1;

  bool any() const { return pauses || buffer || marking || foreign_burst.value > 0; }
};

// The switch's memory and the NICs' limiters, for hosts around one switch. One thread.
class Congestion {
 public:
  // What a network lets it do.
  struct Callbacks {
    std::function<void(Packet)> leave;                                   // into the sender's uplink
    std::function<void(Packet)> burst;                                   // others' packet at the switch
    std::function<void(HostIndex, std::size_t level, bool)> set_paused;  // of the host's uplink
  };
  // `delays` are those of the hosts' cables, `rates` their links'.
  Congestion(EventQueue& events, const CongestionConfig& config, std::vector<Duration> delays,
             const std::vector<BitsPerSecond>& rates, Random random, Callbacks callbacks);

  // The packet of a flow is to leave its host: at once, or when the flow's rate lets it.
  void leave(Packet packet);
  // At the switch, for a port where `queued` bytes of its queue wait: whether it is kept. May mark it.
  bool arrive(Packet& packet, Bytes queued);
  // It leaves the switch.
  void left(const Packet& packet);
  // A packet is at its receiver.
  void received(const Packet& packet);

  struct Counters {
    std::uint64_t pauses = 0, notified = 0;              // times
    std::uint64_t refused = 0, marked = 0, foreign = 0;  // packets
    Counters& operator+=(const Counters& o) {
      pauses += o.pauses;
      notified += o.notified;
      refused += o.refused;
      marked += o.marked;
      foreign += o.foreign;
      return *this;
    }
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Limiter {
    DcqcnRate rate;
    std::deque<Packet> waiting;
    Time next;
    std::optional<Time> notified;
    bool scheduled = false;
  };
  std::size_t hosts() const { return delays_.size(); }
  std::uint32_t ingress(const Packet& p) const;
  Limiter& limiter(const Packet& p) { return limiters_[(p.from.value * hosts() + p.to.value) * kLevels + p.level]; }
  void pump(Limiter& limiter);
  void set_paused(std::uint32_t ingress, std::size_t level, bool paused);
  void burst();

  EventQueue& events_;
  const CongestionConfig config_;
  const std::vector<Duration> delays_;
  Random random_;
  const Callbacks callbacks_;
  std::optional<SwitchMemory> memory_;
  std::vector<Limiter> limiters_;  // by (from, to, level); none without marks
  std::size_t foreign_to_ = 0;
  std::vector<bool> foreign_paused_;  // by level
  Counters counters_;
};

}  // namespace tensorlane::simulator
