// Ordering::kNegotiated: an operation begins once every host of the job has offered it (Horovod's coordinator, which
// here is the leader's host). It holds nothing back for the sake of an order, so any program that works under kTagged
// works; what it buys is that nothing of an operation is on the network before all hosts have their part of it.
//
// Horovod says names first, and answers from a response cache, by bit vector, when the same tensors come again. Here
// the names were agreed on when the tensors were registered, so the vectors are all that is ever said: an offer or an
// agreement is a word of 64 tensors, the leader takes the conjunction of the hosts' words, and what becomes ready while
// a word waits to be sent goes with it.
//
// No sequence numbers: flows keep their order, a host offers a tensor again only after its operation, that began when
// it was agreed on, is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

// Bit i stands for tensor 64 * index + i.
struct TensorWord {
  std::uint32_t index = 0;
  std::uint64_t bits = 0;
};

// One host's part. One thread; allocates in its constructor and in grow() only.
class Negotiation {
 public:
  static constexpr HostIndex kLeader{0};

  Negotiation(HostIndex self, std::uint16_t hosts) : self_(self), hosts_(hosts), given_(hosts), due_(hosts) {}

  // The plan has this many tensors from now on.
  void grow(std::size_t tensors);
  // An offer or an agreement must be about tensors of the plan.
  bool knows(const TensorWord& word) const;

  // This host could begin the tensor's operation; it has not offered it yet. Returns what is agreed on by that, which
  // begins: at the leader, nothing elsewhere. `due` below tells whom there is to speak to.
  TensorWord offer(TensorId tensor);
  // At the leader: another host offers. `*agreed`: what all hosts have offered now. False when it has offered some of
  // it before.
  bool offered(HostIndex from, const TensorWord& word, TensorWord* agreed);
  // Elsewhere: the leader says that all hosts have offered these, and they begin here. False when this host has not.
  bool agreed(const TensorWord& word);

  // Something is to be said to this host.
  bool due(HostIndex peer) const { return due_[peer.value].count > 0; }
  // The next word of it; the peer must have something due.
  TensorWord take_due(HostIndex peer);

 private:
  using Bits = std::vector<std::uint64_t>;
  struct Due {
    Bits words;               // to be said
    std::uint32_t count = 0;  // words with bits
    std::uint32_t next = 0;   // where to look for the next one
  };
  TensorWord agree(std::uint32_t index);
  void say(HostIndex peer, const TensorWord& word);

  HostIndex self_;
  std::uint16_t hosts_;
  std::size_t tensors_ = 0;
  std::vector<Bits> given_;  // offered and not agreed on: at the leader of every host, elsewhere of this one
  std::vector<Due> due_;     // by peer
};

}  // namespace tensorlane::engine
