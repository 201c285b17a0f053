#include "daemon/engine/pattern/route.h"

#include <bit>

#include "common/base/assert.h"
#include "daemon/engine/pattern/halving_doubling.h"
#include "daemon/engine/pattern/parameter_server.h"
#include "daemon/engine/pattern/ring.h"
#include "daemon/engine/pattern/tree.h"

namespace tensorlane::engine {

Route route(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex me) {
  TL_ASSERT(owner.value < hosts && me.value < hosts);
  switch (pattern) {
    case protocol::Pattern::kRing:
      return ring_route(hosts, owner, me);
    case protocol::Pattern::kParameterServer:
    case protocol::Pattern::kWholeServer:
      return parameter_server_route(hosts, owner, me);
    case protocol::Pattern::kHalvingDoubling:
      return halving_doubling_route(hosts, owner, me);
    case protocol::Pattern::kTree:
      return tree_route(hosts, owner, me);
  }
  TL_ASSERT(false && "unknown pattern");
}

bool is_leaf(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex host) {
  switch (pattern) {
    case protocol::Pattern::kRing:
      return ring_is_leaf(hosts, owner, host);
    case protocol::Pattern::kParameterServer:
    case protocol::Pattern::kWholeServer:
      return parameter_server_is_leaf(owner, host);
    case protocol::Pattern::kHalvingDoubling:
      return halving_doubling_is_leaf(hosts, owner, host);
    case protocol::Pattern::kTree:
      return tree_is_leaf(hosts, owner, host);
  }
  TL_ASSERT(false && "unknown pattern");
}

std::uint16_t most_sources(protocol::Pattern pattern, std::uint16_t hosts) {
  if (hosts < 2) return 0;
  switch (pattern) {
    case protocol::Pattern::kRing:
      return 1;
    case protocol::Pattern::kParameterServer:
    case protocol::Pattern::kWholeServer:
      return static_cast<std::uint16_t>(hosts - 1);
    case protocol::Pattern::kHalvingDoubling:  // a step each, and the one that joins
    case protocol::Pattern::kTree:             // a child for every bit of the largest place
      return static_cast<std::uint16_t>(std::bit_width(static_cast<std::uint16_t>(hosts - 1)));
  }
  TL_ASSERT(false && "unknown pattern");
}

double most_received(protocol::Pattern pattern, std::uint16_t hosts, std::uint16_t shards) {
  if (hosts < 2) return 0;
  switch (pattern) {
    case protocol::Pattern::kRing:
    case protocol::Pattern::kParameterServer:
    case protocol::Pattern::kWholeServer:
      return hosts - 1.0;
    case protocol::Pattern::kHalvingDoubling:
      return halving_doubling_most_received(hosts, shards);
    case protocol::Pattern::kTree:
      return halved_steps(hosts, shards);
  }
  TL_ASSERT(false && "unknown pattern");
}

bool passes_partial_sums(protocol::Pattern pattern, std::uint16_t hosts) {
  const bool server = pattern == protocol::Pattern::kParameterServer || pattern == protocol::Pattern::kWholeServer;
  return !server && hosts > 2;
}

}  // namespace tensorlane::engine
