// Which part of a reduce-scatter is whose.
#pragma once

#include <cstdint>

namespace tensorlane::protocol {

// In elements of the tensor. May be empty.
struct RankBlock {
  std::uint64_t offset = 0;
  std::uint64_t elements = 0;
};

// What `rank` of `world_size` gets of a tensor of `elements`, which is cut between rows of `row` elements only: an even
// share of the rows, and one more for the first ranks (Horovod's reducescatter). `row` divides `elements`.
constexpr RankBlock rank_block(std::uint64_t elements, std::uint64_t row, std::uint32_t world_size,
                               std::uint32_t rank) {
  const std::uint64_t rows = elements / row, share = rows / world_size, left = rows % world_size;
  const std::uint64_t first = share * rank + (rank < left ? rank : left);
  return {first * row, (share + (rank < left ? 1 : 0)) * row};
}

}  // namespace tensorlane::protocol
