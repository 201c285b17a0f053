// Whose bytes a switch keeps, when it refuses them, and when it stops who sends them. Arithmetic only: the network
// carries out what it says.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "simulator/network/packet.h"
#include "simulator/network/topology.h"

namespace tensorlane::simulator {

// Priority-based flow control (IEEE 802.1Qbb): when more than `pause` of a level that came in by one link waits in a
// switch, the switch stops that level at the link's other end until no more than `resume` waits.
struct PauseThresholds {
  Bytes pause, resume;
  std::uint32_t levels = ~0u;  // as bits: the lossless ones; others are never stopped
};

// Memory that all ports of a switch share, by dynamic thresholds (Choudhury and Hahne, 1998): a queue may hold `alpha`
// times what is free. A lossy queue that has reached that refuses what comes. Of a lossless level, who sent it is
// stopped when as much of it waits as came by its link, if that is below `PauseThresholds::pause`, and lets go on when
// it is less by `pause` - `resume`; what is on its way until then is kept in the link's and level's own headroom.
struct SharedBuffer {
  Bytes size;  // without headroom
  double alpha = 1;
  Bytes headroom = Bytes(std::numeric_limits<std::uint64_t>::max());
};

// Of all switches. Ports are numbered as in FabricNetwork; `ingress` is the port that sends into a switch.
class SwitchMemory {
 public:
  // Without `buffer` memory has no end.
  SwitchMemory(const Topology& topology, const std::optional<SharedBuffer>& buffer,
               const std::optional<PauseThresholds>& pauses);

  enum class Verdict : std::uint8_t { kKept, kKeptAndPause, kRefused };
  // Something comes by `ingress` for a queue that holds `queued`. kKeptAndPause: the level is to be stopped there.
  Verdict take(std::uint32_t ingress, std::size_t level, std::uint64_t bytes, std::uint64_t queued);

  struct Resumed {
    std::uint32_t ingress, level;
  };
  // It leaves the switch. What may go on thereby is valid until the next call.
  const std::vector<Resumed>& give(std::uint32_t ingress, std::size_t level, std::uint64_t bytes);

  std::uint64_t peak_bytes() const { return peak_; }         // shared by the ports of any one switch
  std::uint64_t peak_headroom() const { return headroom_; }  // of any one link and level

 private:
  struct Held {
    std::uint64_t shared = 0, headroom = 0;
    bool paused = false;
  };
  struct Switch {
    std::uint64_t used = 0;
    std::vector<Resumed> paused;
  };
  Held& held(std::uint32_t ingress, std::size_t level) { return held_[ingress * kLevels + level]; }
  Switch& behind(std::uint32_t ingress) { return switches_[switch_of_[ingress]]; }
  bool lossless(std::size_t level) const { return pauses_ && (pauses_->levels >> level & 1) != 0; }
  std::uint64_t free(const Switch& s) const;
  double threshold(const Switch& s) const;
  void keep(Switch& s, Held& h, std::uint64_t bytes);

  const std::optional<SharedBuffer> buffer_;
  const std::optional<PauseThresholds> pauses_;
  std::vector<std::uint32_t> switch_of_;  // by port; none for those that send to hosts
  std::vector<Held> held_;                // by port and level
  std::vector<Switch> switches_;
  std::vector<Resumed> resumed_;
  std::uint64_t peak_ = 0, headroom_ = 0;
};

}  // namespace tensorlane::simulator
