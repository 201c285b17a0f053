// Urgency by layer order: what the next forward pass needs first is most urgent.
#pragma once

#include <cstdint>

namespace tensorlane::engine {

// Geryon, section III: 1 - l / L, for position l of L in the forward pass (0 is needed first). In (0, 1]; a position
// beyond the last counts as the last, and without positions everything is equally urgent (1).
constexpr float layer_order(std::uint32_t position, std::uint32_t positions) {
  if (positions == 0) return 1.0F;
  if (position >= positions) position = positions - 1;
  return static_cast<float>(1.0 - static_cast<double>(position) / static_cast<double>(positions));
}

}  // namespace tensorlane::engine
