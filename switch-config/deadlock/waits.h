// The graph of buffer dependencies. A node is a channel: the ingress buffer of a switch at one port. An edge u -> v
// says that some route carries traffic which entered by u onward by v, so that u cannot drain while v is full. A
// network is free of deadlock if the graph has no cycle (Dally and Seitz, "Deadlock-Free Message Routing", 1987).
#pragma once

#include <cstdint>
#include <vector>

#include "switch-config/deadlock/ports.h"

namespace tensorlane::deadlock {

class Waits {
 public:
  // `ports` outlives this.
  explicit Waits(const Ports& ports);

  // At a switch: what came in by its port `in` goes out by its port `out`.
  void add(NodeIndex node, std::size_t in, std::size_t out);

  // A cycle of every part of the graph whose channels all wait for each other, at most `most`; empty: there is none.
  // Each channel of a cycle waits for the next, and the last for the first. A cycle has as few channels as any through
  // one of them.
  std::vector<std::vector<Channel>> find_cycles(std::size_t most) const;
  // A cycle through a channel, as short as there is; empty: none.
  std::vector<Channel> shortest_through(Channel start) const;

 private:
  // Row i, column j at a switch with n ports.
  struct Matrix {
    std::size_t words = 0;
    std::vector<std::uint64_t> bits;
  };
  // The first follower whose column is at least `from`, which moves past it. False: no more.
  bool next(Channel channel, std::size_t& from, Channel& follower) const;

  const Ports& ports_;
  std::vector<Matrix> matrices_;  // by node
};

}  // namespace tensorlane::deadlock
