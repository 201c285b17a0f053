// Many priority queues over one table of nodes: an item is in at most one of them. Pairing heaps (Fredman, Sedgewick,
// Sleator, Tarjan 1986), so that queues take no memory of their own, however many there are and however long each gets.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::engine {

// Smallest key first. A push is one comparison; a pop is as many as the logarithm of the length, amortised. Nothing is
// allocated after the constructor.
class MessageHeaps {
 public:
  MessageHeaps(std::size_t queues, std::size_t items) : roots_(queues, kNone), nodes_(items) {}

  static constexpr std::size_t bytes(std::size_t queues, std::size_t items) {
    return queues * sizeof(std::uint32_t) + items * sizeof(Node);
  }

  bool empty(std::size_t queue) const { return roots_[queue] == kNone; }
  std::uint32_t top(std::size_t queue) const { return roots_[queue]; }
  // The item is in no queue.
  void push(std::size_t queue, double key, std::uint64_t order, std::uint32_t item) {
    nodes_[item] = {key, order, kNone, kNone};
    roots_[queue] = merge(roots_[queue], item);
  }
  void pop(std::size_t queue) {
    TL_ASSERT(!empty(queue));
    // Children in pairs from the left, then the pairs from the right.
    std::uint32_t child = nodes_[roots_[queue]].child, pairs = kNone;
    while (child != kNone) {
      const std::uint32_t second = nodes_[child].next;
      const std::uint32_t rest = second == kNone ? kNone : nodes_[second].next;
      nodes_[child].next = kNone;
      if (second != kNone) nodes_[second].next = kNone;
      const std::uint32_t pair = merge(child, second);
      nodes_[pair].next = pairs;
      pairs = pair;
      child = rest;
    }
    std::uint32_t root = kNone;
    while (pairs != kNone) {
      const std::uint32_t rest = nodes_[pairs].next;
      nodes_[pairs].next = kNone;
      root = merge(root, pairs);
      pairs = rest;
    }
    roots_[queue] = root;
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Node {
    double key = 0;
    std::uint64_t order = 0;  // among equal keys
    std::uint32_t child = kNone, next = kNone;
  };

  bool before(std::uint32_t a, std::uint32_t b) const {
    return nodes_[a].key != nodes_[b].key ? nodes_[a].key < nodes_[b].key : nodes_[a].order < nodes_[b].order;
  }
  std::uint32_t merge(std::uint32_t a, std::uint32_t b) {
    if (a == kNone) return b;
    if (b == kNone) return a;
    if (before(b, a)) std::swap(a, b);
    nodes_[b].next = nodes_[a].child;
    nodes_[a].child = b;
    return a;
  }

  std::vector<std::uint32_t> roots_;
  std::vector<Node> nodes_;
};

}  // namespace tensorlane::engine
