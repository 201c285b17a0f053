// What connects the queue pairs of flows.
#pragma once

#include <cstdint>

namespace tensorlane::rdma {

enum class ConnectBy : std::uint8_t { kVerbs, kCm };  // plain verbs, or rdma_cm

}  // namespace tensorlane::rdma
