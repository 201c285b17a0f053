#include "daemon/engine/pattern/route.h"

#include "common/base/assert.h"
#include "daemon/engine/pattern/parameter_server.h"
#include "daemon/engine/pattern/ring.h"

namespace tensorlane::engine {

Route route(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex me) {
  TL_ASSERT(owner.value < hosts && me.value < hosts);
  switch (pattern) {
    case protocol::Pattern::kRing:
      return ring_route(hosts, owner, me);
    case protocol::Pattern::kParameterServer:
      return parameter_server_route(hosts, owner, me);
  }
  TL_ASSERT(false && "unknown pattern");
}

bool is_leaf(protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, HostIndex host) {
  switch (pattern) {
    case protocol::Pattern::kRing:
      return ring_is_leaf(hosts, owner, host);
    case protocol::Pattern::kParameterServer:
      return parameter_server_is_leaf(owner, host);
  }
  TL_ASSERT(false && "unknown pattern");
}

}  // namespace tensorlane::engine
