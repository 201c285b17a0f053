// Whole tensors on servers: the whole tensor has one owner, the plan's `root`, as frameworks place variables on
// parameter servers one by one in turn ("vanilla" in Geryon, section V-A). Worse balanced than a parameter server of
// shards, and there to be compared with; the routes are the same.
#pragma once

#include "daemon/engine/pattern/parameter_server.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine {

inline Shard whole_server_shard(const protocol::PlanTensor& tensor) {
  return {0, tensor.elements, tensor.root};
}

}  // namespace tensorlane::engine
