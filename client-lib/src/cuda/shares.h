// A tensor that the ranks of one host have on their GPUs, and whose sums they form there: each sums its share of all
// ranks' buffers, in the order of ranks, sends only that through the host's memory, and takes the other shares of the
// result from the others' buffers. So each byte of the host's sum passes the bus to the host once, and not once for
// each rank.
//
// Sums of 16-bit numbers are float32 until they are the result: they have memory of their own, travel so, and are
// rounded once, after the division of an average.
//
// A rank reads others' memory only between meetings of the host's ranks, of which an operation has three: when all
// inputs are there, when all shares of the result are in place, and when all have taken them.
#pragma once

#include <cstdint>
#include <vector>

#include "client-lib/src/cuda/driver.h"

namespace tensorlane::client::cuda {

struct Shares {
  // Bytes of the tensor, by rank on the host. Starts are multiples of 64, and none is empty.
  struct Range {
    std::uint64_t offset = 0, bytes = 0;
  };
  std::vector<Range> ranges;
  std::vector<DevicePointer> buffers;  // of the whole tensor, by rank on the host
  std::uint32_t self = 0;              // this rank among them
  std::uint64_t bytes = 0;             // of the tensor
  std::uint64_t element_bytes = 0;
  DevicePointer sums = 0;       // of this rank's share; its part of its buffer, or memory of their own
  std::uint64_t sum_bytes = 0;  // of an element of them
  Function_ combine = nullptr;
  Function_ finish = nullptr;  // makes the result of what has come from the hosts; null: it is the result
  double divisor = 1;          // by which `finish` divides

  const Range& mine() const { return ranges[self]; }
};

// Cuts a tensor of `elements` for `ranks`, which have at least one unit of 64 bytes each.
std::vector<Shares::Range> cut(std::uint64_t elements, std::uint64_t element_bytes, std::uint32_t ranks);

}  // namespace tensorlane::client::cuda
