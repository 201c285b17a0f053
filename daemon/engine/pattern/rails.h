// Which rail carries which slice of a tensor: a function of (tensor, slice, hosts, rails) and nothing else (laws 1,
// 12).
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::engine {

// The slices of one tensor that one rail carries: every `step`-th, from `first` on. Slices are numbered over all shards
// of the tensor, in order of offset.
struct RailSlices {
  std::uint32_t first = 0, step = 1;  // first < step

  bool has(std::uint32_t slice) const { return slice % step == first; }
  // Position among them, of one that it has; and back.
  std::uint32_t index(std::uint32_t slice) const { return slice / step; }
  std::uint32_t slice(std::uint32_t index) const { return first + index * step; }
};

// Slice modulo rails, from a start that moves on each time that every host has owned a tensor (pattern/shards.h): else
// all tensors of one slice, which most are in number, would crowd on the first rail.
constexpr RailSlices rail_slices(TensorId tensor, std::uint16_t hosts, RailIndex rail, std::uint8_t rails) {
  const std::uint32_t start = tensor.value / hosts % rails;
  return {(start + rail.value) % rails, rails};
}

}  // namespace tensorlane::engine
