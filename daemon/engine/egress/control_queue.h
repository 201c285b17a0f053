// Control frames that wait to be sent: per peer, those of more urgent classes first, in order of arrival within a
// class.
#pragma once

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
        credit_due_(hosts),
        credit_since_(hosts) {}

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

  // Credits need no message: what is due is added up until it goes.
  void credit_due(HostIndex peer, Time now) {
    if (!credit_due_.contains(peer)) credit_since_[peer.value] = now;
    credit_due_.insert(peer);
    waiting_.insert(peer);
  }
  // Whether credits are due to this peer, and since when the first of them; they no longer are.
  bool take_credit_due(HostIndex peer, Time* since) {
    const bool due = credit_due_.contains(peer);
    if (due) *since = credit_since_[peer.value];
    credit_due_.erase(peer);
    if (due) refresh(peer);
    return due;
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
    if (credit_due_.contains(peer)) return;
    for (std::uint8_t c = 0; c < classes_; ++c) {
      if (lists_[std::size_t{peer.value} * classes_ + c].first != kNone) return;
    }
    waiting_.erase(peer);
  }

  std::uint8_t classes_;
  std::vector<Node> nodes_;
  std::vector<List> lists_;
  PeerSet waiting_, credit_due_;
  std::vector<Time> credit_since_;  // by peer: where credits are due
  std::uint32_t first_free_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace tensorlane::engine
