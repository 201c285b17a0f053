// Prepaid credit (law 2): every host lends each peer that it has flows to a few small slots, which that peer may fill
// unasked. The sender names the slot, so landing needs no bookkeeping before the payload is complete. How many a peer
// has is its lender's affair: it knows of them by the credit frames that it gets, the first of which lends them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "common/base/assert.h"
#include "common/base/units.h"

namespace tensorlane::engine {

inline constexpr std::uint32_t kMaxEagerCredits = 64;  // slots are named by the bits of a word

class EagerCredits {
 public:
  // `most`: slots of one peer, at most kMaxEagerCredits; `slots`: those here, for all peers together.
  EagerCredits(std::uint16_t hosts, std::uint32_t most, std::uint32_t slots)
      : most_(most), all_(mask(most)), slots_(slots), mine_(hosts), theirs_(hosts) {}

  // ---- as a sender: the slots that I may fill at `peer` ----
  std::uint32_t left(HostIndex peer) const {
    return static_cast<std::uint32_t>(std::popcount(mine_[peer.value].empty));
  }
  // Those that I have filled and that have not come back.
  std::uint64_t out(HostIndex peer) const { return mine_[peer.value].lent & ~mine_[peer.value].empty; }
  // Takes one; the caller has asked left().
  std::uint32_t spend(HostIndex peer) {
    std::uint64_t& empty = mine_[peer.value].empty;
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(empty));
    empty &= empty - 1;
    return slot;
  }
  // The peer gives slots back, or lends them. False when they are mine already (or there are none such): a fault of the
  // peer.
  bool refund(HostIndex peer, std::uint64_t slots) {
    Mine& m = mine_[peer.value];
    if (slots == 0 || (slots & ~all_) != 0 || (slots & m.empty) != 0) return false;
    m.lent |= slots;
    m.empty |= slots;
    return true;
  }

  // ---- as a receiver: the slots that `peer` may fill here ----
  // Lends the peer, which has none, its share of the slots that are left for `waiting` peers, of which it is one: the
  // last ones of more peers than slots get none.
  // Whether it got any: then it is time to tell the peer of them.
  bool lend(HostIndex peer, std::uint32_t waiting) {
    Theirs& t = theirs_[peer.value];
    TL_ASSERT(t.all == 0 && waiting > 0);
    const std::uint32_t share = std::min(most_, (slots_ - lent_ + waiting - 1) / waiting);
    t.first = lent_;
    t.all = t.freed = mask(share);
    lent_ += share;
    return share > 0;
  }
  // Where a slot that the peer may fill, or has filled, stands among all slots.
  std::uint32_t place(HostIndex peer, std::uint32_t slot) const { return theirs_[peer.value].first + slot; }
  // Whether the peer may fill this slot now.
  bool may_fill(HostIndex peer, std::uint32_t slot) const {
    const Theirs& t = theirs_[peer.value];
    return slot < kMaxEagerCredits && ((t.all & ~(t.filled | t.freed)) >> slot & 1) != 0;
  }
  void fill(HostIndex peer, std::uint32_t slot) { theirs_[peer.value].filled |= std::uint64_t{1} << slot; }
  // The slot has been read. True when it is time to give back what has gathered: half of the slots, or the peer has
  // none left.
  bool free(HostIndex peer, std::uint32_t slot) {
    Theirs& t = theirs_[peer.value];
    t.filled &= ~(std::uint64_t{1} << slot);
    t.freed |= std::uint64_t{1} << slot;
    return std::popcount(t.freed) * 2 >= std::popcount(t.all) || (t.filled | t.freed) == t.all;
  }
  // How many slots the peer has here.
  std::uint32_t lent(HostIndex peer) const {
    return static_cast<std::uint32_t>(std::popcount(theirs_[peer.value].all));
  }
  // Those that are read, or lent, but that the peer does not know of yet.
  std::uint64_t owed(HostIndex peer) const { return theirs_[peer.value].freed; }
  // What goes into the credit frame; may be 0 when an earlier frame took it along.
  std::uint64_t give_back(HostIndex peer) {
    const std::uint64_t slots = theirs_[peer.value].freed;
    theirs_[peer.value].freed = 0;
    return slots;
  }

 private:
  struct Mine {
    std::uint64_t lent = 0;   // that I know of
    std::uint64_t empty = 0;  // of them, that I may fill now
  };
  struct Theirs {
    std::uint32_t first = 0;
    std::uint64_t all = 0;
    std::uint64_t filled = 0;  // holding a contribution
    std::uint64_t freed = 0;   // read, or lent, but the peer does not know yet
  };
  static constexpr std::uint64_t mask(std::uint32_t count) {
    return count == 0 ? 0 : ~std::uint64_t{0} >> (64 - count);
  }

  std::uint32_t most_;
  std::uint64_t all_;
  std::uint32_t slots_, lent_ = 0;
  std::vector<Mine> mine_;
  std::vector<Theirs> theirs_;
};

}  // namespace tensorlane::engine
