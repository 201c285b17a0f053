// The regions of one lane: descriptors in, bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/descriptor.h"
#include "daemon/ports/memory.h"

namespace tensorlane::memory {

// A fixed number of regions, found by one table look-up. One thread owns it. Nothing is allocated after construction.
class RegionTable final : public ports::Memory {
 public:
  // `max_regions` at least 1.
  explicit RegionTable(std::uint32_t max_regions);

  std::span<std::byte> resolve(const Descriptor& descriptor) override;
  // A Descriptor{} (generation 0, which resolves to nothing) when all `max_regions` are in use.
  Descriptor add(std::span<std::byte> bytes) override;
  // Asserts that the region is there.
  void remove(std::uint32_t region) override;

  std::uint32_t size() const { return live_; }

 private:
  struct Region {
    std::span<std::byte> bytes;
    std::uint32_t generation = 0;  // 0: never used
    bool live = false;
  };

  std::vector<Region> regions_;
  std::vector<std::uint32_t> free_;  // the last one is taken next
  std::uint32_t live_ = 0;
};

}  // namespace tensorlane::memory
