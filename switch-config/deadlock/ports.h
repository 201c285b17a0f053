// The ports of switches towards other switches, without what failed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "switch-config/deadlock/network.h"

namespace tensorlane::deadlock {

// A link in one direction, and with it the ingress buffer at its far end: 2 * link, + 1 from b to a.
using Channel = std::uint32_t;

// At most one link and one node that are down.
struct Failure {
  std::optional<std::uint32_t> link;
  std::optional<NodeIndex> node;
};

struct Port {
  NodeIndex peer = 0;
  Channel in = 0;   // from the peer
  Channel out = 0;  // to the peer
};

// Hosts are left out: nothing waits for a buffer that a host fills, and hosts drain theirs.
class Ports {
 public:
  Ports(const Network& network, const Failure& failure);

  std::size_t nodes() const { return ports_.size(); }
  const std::vector<Port>& of(NodeIndex node) const { return ports_[node]; }
  // Whether a host that works has a link that works to this switch, which works.
  bool has_hosts(NodeIndex node) const { return has_hosts_[node] != 0; }
  // The first port of `node` to `peer`; nothing: no link that works.
  std::optional<std::size_t> find(NodeIndex node, NodeIndex peer) const;
  // The switch that a channel leads to and the index of its port there; nothing for a link of a host or one that is
  // down.
  struct End {
    NodeIndex node = 0;
    std::uint32_t port = 0;
  };
  const std::optional<End>& end(Channel channel) const { return ends_[channel]; }
  std::size_t channels() const { return ends_.size(); }

 private:
  std::vector<std::vector<Port>> ports_;
  std::vector<char> has_hosts_;
  std::vector<std::optional<End>> ends_;
};

}  // namespace tensorlane::deadlock
