// How a lane turns descriptors into bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/descriptor.h"

namespace tensorlane::ports {

// Finds bytes behind descriptors. One lane thread owns it; resolve() is the data path: no lock, no allocation.
class Memory {
 public:
  virtual ~Memory() = default;
  // The bytes, or an empty span when the region is gone, the generation is old, or the range leaves the region. A
  // descriptor of length zero resolves to an empty span too.
  virtual std::span<std::byte> resolve(const Descriptor& descriptor) = 0;
  // Makes memory of ours visible as a region; the caller keeps the mapping alive until remove().
  virtual Descriptor add(std::span<std::byte> bytes) = 0;
  // Old descriptors of this region resolve to nothing from now on.
  virtual void remove(std::uint32_t region) = 0;
};

}  // namespace tensorlane::ports
