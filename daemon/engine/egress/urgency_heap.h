// A priority queue of small numbers (indices of sends or slices), smallest key first, ties by smaller index. Four
// children per node, so that one step down reads one cache line. It knows where each item is, so that a boost can move
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::engine {

// Where items stand in their heaps; one store serves several heaps, because an item is in at most one.
using HeapPositions = std::vector<std::uint32_t>;
inline constexpr std::uint32_t kNotQueued = ~0u;

class UrgencyHeap {
 public:
  // Room for `items`; push() beyond it is a broken invariant. Allocates.
  void reserve(std::size_t items) {
    const std::size_t now = nodes_.size();
    if (items <= nodes_.capacity()) return;
    // Twice as many at least, so that a plan that grows by one tensor at a time is not copied each time.
    nodes_.resize(
        std::max(items, 2 * nodes_.capacity()));  // touches the memory, so that no push has to wait for a page
    nodes_.resize(now);
  }
  std::size_t capacity() const { return nodes_.capacity(); }

  bool empty() const { return nodes_.empty(); }
  std::size_t size() const { return nodes_.size(); }
  std::uint32_t top() const {
    TL_ASSERT(!nodes_.empty());
    return nodes_.front().item;
  }
  // Whether this heap's first goes before the other's. Neither may be empty.
  bool before(const UrgencyHeap& other) const {
    TL_ASSERT(!nodes_.empty() && !other.nodes_.empty());
    return nodes_.front() < other.nodes_.front();
  }

  void push(HeapPositions& positions, std::uint64_t key, std::uint32_t item) {
    TL_ASSERT(positions[item] == kNotQueued && nodes_.size() < nodes_.capacity());
    nodes_.push_back({key, item});
    rise(positions, nodes_.size() - 1);
  }
  void pop(HeapPositions& positions) {
    TL_ASSERT(!nodes_.empty());
    positions[nodes_.front().item] = kNotQueued;
    const Node last = nodes_.back();
    nodes_.pop_back();
    if (!nodes_.empty()) sink(positions, last);
  }
  // Gives a queued item a smaller key.
  void move_up(HeapPositions& positions, std::uint64_t key, std::uint32_t item) {
    const std::uint32_t at = positions[item];
    TL_ASSERT(at < nodes_.size() && nodes_[at].item == item && key <= nodes_[at].key);
    nodes_[at].key = key;
    rise(positions, at);
  }

 private:
  static constexpr std::size_t kChildren = 4;
  struct Node {
    std::uint64_t key;
    std::uint32_t item;
    bool operator<(const Node& other) const { return key != other.key ? key < other.key : item < other.item; }
  };

  void put(HeapPositions& positions, std::size_t at, const Node& node) {
    nodes_[at] = node;
    positions[node.item] = static_cast<std::uint32_t>(at);
  }
  void rise(HeapPositions& positions, std::size_t at) {
    const Node node = nodes_[at];
    while (at > 0) {
      const std::size_t parent = (at - 1) / kChildren;
      if (!(node < nodes_[parent])) break;
      put(positions, at, nodes_[parent]);
      at = parent;
    }
    put(positions, at, node);
  }
  // `node` looks for its place from the root down.
  void sink(HeapPositions& positions, const Node& node) {
    std::size_t at = 0;
    for (;;) {
      const std::size_t first = at * kChildren + 1;
      if (first >= nodes_.size()) break;
      const std::size_t end = first + kChildren < nodes_.size() ? first + kChildren : nodes_.size();
      std::size_t best = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (nodes_[child] < nodes_[best]) best = child;
      }
      if (!(nodes_[best] < node)) break;
      put(positions, at, nodes_[best]);
      at = best;
    }
    put(positions, at, node);
  }

  std::vector<Node> nodes_;
};

}  // namespace tensorlane::engine
