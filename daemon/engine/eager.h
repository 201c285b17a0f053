// Prepaid credit (law 2): every host keeps a few small slots for every peer, which that peer may fill unasked. The
// sender names the slot, so landing needs no bookkeeping before the payload is complete.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

inline constexpr std::uint32_t kMaxEagerCredits = 64;  // slots are named by the bits of a word

class EagerCredits {
 public:
  EagerCredits(std::uint16_t hosts, std::uint32_t credits)
      : credits_(credits),
        all_(credits == 0 ? 0 : ~std::uint64_t{0} >> (64 - credits)),
        mine_(hosts, all_),
        theirs_(hosts) {}

  // ---- as a sender: the slots that I may fill at `peer` ----
  std::uint32_t left(HostIndex peer) const { return static_cast<std::uint32_t>(std::popcount(mine_[peer.value])); }
  // Those that I have filled and that have not come back.
  std::uint64_t out(HostIndex peer) const { return all_ & ~mine_[peer.value]; }
  // Takes one; the caller has asked left().
  std::uint32_t spend(HostIndex peer) {
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(mine_[peer.value]));
    mine_[peer.value] &= mine_[peer.value] - 1;
    return slot;
  }
  // The peer gives slots back. False when I had not filled them (or there are none such): a fault of the peer.
  bool refund(HostIndex peer, std::uint64_t slots) {
    if (slots == 0 || (slots & ~all_) != 0 || (slots & mine_[peer.value]) != 0) return false;
    mine_[peer.value] |= slots;
    return true;
  }

  // ---- as a receiver: the slots that `peer` may fill here ----
  // Whether the peer may fill this slot now.
  bool may_fill(HostIndex peer, std::uint32_t slot) const {
    const Theirs& t = theirs_[peer.value];
    return slot < credits_ && ((t.filled | t.freed) >> slot & 1) == 0;
  }
  void fill(HostIndex peer, std::uint32_t slot) { theirs_[peer.value].filled |= std::uint64_t{1} << slot; }
  // The slot has been read. True when it is time to give back what has gathered: half of the slots, or the peer has
  // none left.
  bool free(HostIndex peer, std::uint32_t slot) {
    Theirs& t = theirs_[peer.value];
    t.filled &= ~(std::uint64_t{1} << slot);
    t.freed |= std::uint64_t{1} << slot;
    return static_cast<std::uint32_t>(std::popcount(t.freed)) * 2 >= credits_ || (t.filled | t.freed) == all_;
  }
  // Those that are read, but that the peer does not know of yet.
  std::uint64_t owed(HostIndex peer) const { return theirs_[peer.value].freed; }
  // What goes into the credit frame; may be 0 when an earlier frame took it along.
  std::uint64_t give_back(HostIndex peer) {
    const std::uint64_t slots = theirs_[peer.value].freed;
    theirs_[peer.value].freed = 0;
    return slots;
  }

 private:
  struct Theirs {
    std::uint64_t filled = 0;  // holding a contribution
    std::uint64_t freed = 0;   // read, but the peer does not know yet
  };
  std::uint32_t credits_;
  std::uint64_t all_;
  std::vector<std::uint64_t> mine_;
  std::vector<Theirs> theirs_;
};

}  // namespace tensorlane::engine
