// What waits to be sent: strictly by class, inside a class by peer, inside a peer by law 9.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "daemon/engine/egress/peer_set.h"
#include "daemon/engine/egress/urgency_heap.h"
#include "daemon/engine/iterations.h"
#include "daemon/engine/types.h"

namespace tensorlane::engine {

// Law 9 as one number, smaller is earlier: boosted operations, then older iterations (iterations.h), then results
// before contributions, then urgency. Ties fall to the smaller item: items are numbered by tensor, then slice.
inline constexpr std::uint64_t kMaxSequence = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t send_key(bool boosted, Iteration iteration, bool result, float urgency) {
  constexpr std::uint32_t kUrgencyMax = (1u << 22) - 1;
  const auto delay = static_cast<std::uint64_t>((1.0 - static_cast<double>(urgency)) * kUrgencyMax);
  return static_cast<std::uint64_t>(!boosted) << 63 | (iteration.value & kMaxSequence) << 23 |
         static_cast<std::uint64_t>(!result) << 22 | delay;
}

// Items are numbers below the count given to grow(). One owner thread; nothing is allocated but in grow() and allow().
class SendQueue {
 public:
  SendQueue(std::uint8_t classes, std::uint16_t hosts)
      : hosts_(hosts), heaps_(std::size_t{classes} * hosts), waiting_(classes, PeerSet(hosts)), counts_(classes) {}

  // Items from 0 to count - 1 exist.
  void grow(std::size_t count) { positions_.resize(count, kNotQueued); }
  // At most `items` will wait on this flow at a time.
  void allow(Flow flow, std::size_t items) { heap(flow).reserve(items); }

  void push(Flow flow, std::uint64_t key, std::uint32_t item) {
    heap(flow).push(positions_, key, item);
    waiting_[flow.cls.value].insert(flow.peer);
    ++counts_[flow.cls.value];
    ++size_;
  }
  // Does nothing when the item is not queued.
  void move_up(Flow flow, std::uint64_t key, std::uint32_t item) {
    if (positions_[item] != kNotQueued) heap(flow).move_up(positions_, key, item);
  }
  std::uint32_t top(Flow flow) const { return heap(flow).top(); }
  // Whether what is first in flow `a` goes before what is first in `b`. Neither may be empty.
  bool before(Flow a, Flow b) const { return heap(a).before(heap(b)); }
  void pop(Flow flow) {
    heap(flow).pop(positions_);
    if (heap(flow).empty()) waiting_[flow.cls.value].erase(flow.peer);
    --counts_[flow.cls.value];
    --size_;
  }

  // A class that is not there (a job with a single queue has one only) has nothing waiting.
  bool empty(Flow flow) const { return !exists(flow.cls) || heap(flow).empty(); }
  bool empty(ClassId cls) const { return !exists(cls) || counts_[cls.value] == 0; }
  std::size_t size() const { return size_; }
  bool next_peer(ClassId cls, HostIndex after, HostIndex* peer) const {
    return exists(cls) && waiting_[cls.value].next(after, peer);
  }

 private:
  bool exists(ClassId cls) const { return cls.value < waiting_.size(); }
  UrgencyHeap& heap(Flow flow) { return heaps_[std::size_t{flow.cls.value} * hosts_ + flow.peer.value]; }
  const UrgencyHeap& heap(Flow flow) const { return heaps_[std::size_t{flow.cls.value} * hosts_ + flow.peer.value]; }

  std::uint16_t hosts_;
  HeapPositions positions_;
  std::vector<UrgencyHeap> heaps_;
  std::vector<PeerSet> waiting_;
  std::vector<std::size_t> counts_;
  std::size_t size_ = 0;
};

}  // namespace tensorlane::engine
