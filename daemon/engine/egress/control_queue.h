// Control frames that wait to be sent: per peer, what is due and only ever added up, then those of more urgent classes
// first, in order of arrival within a class.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/assert.h"
#include "common/base/units.h"
#include "common/protocol/frame.h"
#include "daemon/engine/egress/peer_set.h"

namespace tensorlane::engine {

struct ControlMessage {
  protocol::FrameType type{};
  TensorId tensor;
  Sequence sequence;
  std::uint32_t slice = 0;
  std::uint32_t grant = 0;
  Time since;  // it was pushed
  bool in_parts = false;
};

// The bound is exact: a message of an operation leaves the queue before that operation can complete, so there is at
// most one announcement per (tensor, peer), one grant per (slice, source) and one RTS per slice. The caller adds them
// up for grow().
class ControlQueue {
 public:
  ControlQueue(std::uint8_t classes, std::uint16_t hosts)
      : classes_(classes),
        lists_(std::size_t{classes} * hosts),
        waiting_(hosts),
        due_{PeerSet(hosts), PeerSet(hosts)},
        due_since_{std::vector<Time>(hosts), std::vector<Time>(hosts)} {}

  // Room for `messages` at a time. Allocates.
  void grow(std::size_t messages) {
    while (nodes_.size() < messages) {
      nodes_.push_back({{}, first_free_});
      first_free_ = static_cast<std::uint32_t>(nodes_.size() - 1);
    }
  }

  void push(HostIndex peer, ClassId cls, const ControlMessage& message) {
    TL_ASSERT(first_free_ != kNone);
    const std::uint32_t node = first_free_;
    first_free_ = nodes_[node].next;
    nodes_[node] = {message, kNone};
    List& list = lists_[std::size_t{peer.value} * classes_ + cls.value];
    (list.last == kNone ? list.first : nodes_[list.last].next) = node;
    list.last = node;
    waiting_.insert(peer);
    ++size_;
  }
  // False when there is none for this peer.
  bool pop(HostIndex peer, ControlMessage* message) {
    for (std::uint8_t c = 0; c < classes_; ++c) {
      List& list = lists_[std::size_t{peer.value} * classes_ + c];
      if (list.first == kNone) continue;
      const std::uint32_t node = list.first;
      *message = nodes_[node].message;
      list.first = nodes_[node].next;
      if (list.first == kNone) list.last = kNone;
      nodes_[node].next = first_free_;
      first_free_ = node;
      --size_;
      refresh(peer);
      return true;
    }
    return false;
  }

  // What needs no message: it is added up, by whoever says that it is due, until it goes.
  enum class Due : std::uint8_t { kCredits, kTensorWords };
  void due(Due what, HostIndex peer, Time now) {
    const auto w = static_cast<std::size_t>(what);
    if (!due_[w].contains(peer)) due_since_[w][peer.value] = now;
    due_[w].insert(peer);
    waiting_.insert(peer);
  }
  // Whether it is due to this peer, and since when the first of it.
  bool is_due(Due what, HostIndex peer, Time* since) const {
    const auto w = static_cast<std::size_t>(what);
    *since = due_since_[w][peer.value];
    return due_[w].contains(peer);
  }
  // All of it has gone.
  void settle(Due what, HostIndex peer) {
    due_[static_cast<std::size_t>(what)].erase(peer);
    refresh(peer);
  }

  bool empty(HostIndex peer) const { return !waiting_.contains(peer); }
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return size_; }
  bool next_peer(HostIndex after, HostIndex* peer) const { return waiting_.next(after, peer); }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Node {
    ControlMessage message;
    std::uint32_t next = kNone;
  };
  struct List {
    std::uint32_t first = kNone, last = kNone;
  };

  void refresh(HostIndex peer) {
    for (const PeerSet& due : due_) {
      if (due.contains(peer)) return;
    }
    for (std::uint8_t c = 0; c < classes_; ++c) {
      if (lists_[std::size_t{peer.value} * classes_ + c].first != kNone) return;
    }
    waiting_.erase(peer);
  }

  std::uint8_t classes_;
  std::vector<Node> nodes_;
  std::vector<List> lists_;
  PeerSet waiting_;                             // something is here for them
  std::array<PeerSet, 2> due_;                  // by Due
  std::array<std::vector<Time>, 2> due_since_;  // by Due and peer: where it is due
  std::uint32_t first_free_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace tensorlane::engine
